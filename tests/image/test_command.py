"""`invoke image`: the command for each engine, what it hands in of the host's, and one line for each mistake."""

import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import matrix as matrices
from errors import UserError
from image import build
from image.build import Asked, build_command, secrets
from tests.image.chapter import ROOT

DIGEST = "quay.io/ascend/cann@sha256:" + "a" * 64
PERFORMANCE, CPU = matrices.load("performance"), matrices.load("cpu")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with git and nothing else on its path, and an empty home; `host("docker", …)` installs a fake engine."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    for name in ("git", "sh", "cat"):
        (programs / name).symlink_to(shutil.which(name))
    for name in (*build.PROXIES, *build.CERTIFICATES, "PIP_CONFIG_FILE", "XDG_CONFIG_HOME", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(home))

    def install(name: str, said: str = "", code: int = 0) -> Path:
        """The file that will hold the arguments, one a line."""
        calls, output = tmp_path / f"{name}.calls", tmp_path / f"{name}.says"
        output.write_text(said)
        program = programs / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {calls}\ncat {output} >&2\nexit {code}\n')
        program.chmod(0o755)
        return calls

    install.home = home
    return install


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout without edits, that the command believes to be its own."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "Dockerfile").write_text("ARG BASE_IMAGE=quay.io/ascend/cann:8.3\nARG CPU_BASE_IMAGE=debian:bookworm\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one", "--date", "2026-01-02T03:04:05Z")
    monkeypatch.setattr(build, "ROOT", folder)
    return folder


def values(command: list[str], option: str) -> list[str]:
    return [after for word, after in pairwise(command) if word == option]


def arguments(command: list[str]) -> dict[str, str | None]:
    return dict((*one.split("=", 1), None)[:2] for one in values(command, "--build-arg"))


# The command.


@pytest.mark.parametrize(
    ("engine", "own"),
    [
        ("docker", {"--progress": ["plain"], "--format": [], "--timestamp": []}),
        ("podman", {"--progress": [], "--format": ["docker"], "--timestamp": ["TIME"]}),
        ("buildah", {"--progress": [], "--format": ["docker"], "--timestamp": ["TIME"]}),
    ],
)
def test_each_engine_gets_the_same_build(checkout, engine, own):
    time = git(checkout, "log", "-1", "--format=%ct")
    command = build_command(Asked("commercial"), matrices.load("commercial"), engine, {})
    assert command[:2] == [engine, "build"] and command[-1] == "."
    assert values(command, "--tag") == ["ascend-rl:commercial"] and values(command, "--target") == ["final"]
    commit = git(checkout, "rev-parse", "HEAD")
    assert arguments(command) == {"MATRIX": "commercial", "SOURCE_DATE_EPOCH": time, "REVISION": commit}
    for option, wanted in own.items():
        assert values(command, option) == [time if one == "TIME" else one for one in wanted]


def test_the_cpu_matrix_is_a_target_with_a_base_of_its_own(checkout):
    command = build_command(Asked("cpu", base="debian:bookworm-slim", tag="small"), CPU, "docker", {})
    assert values(command, "--target") == ["cpu"] and values(command, "--tag") == ["small"]
    assert arguments(command).keys() == {"CPU_BASE_IMAGE", "SOURCE_DATE_EPOCH", "REVISION"}


def test_without_git_the_time_is_the_environment_s(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    command = build_command(Asked(), PERFORMANCE, "docker", {"SOURCE_DATE_EPOCH": "1760000000"})
    assert arguments(command)["SOURCE_DATE_EPOCH"] == "1760000000" and "REVISION" not in arguments(command)


def test_mirrors_and_base_are_build_arguments(checkout):
    mirrors = ("megatron-lm=https://git.example.com/m.git", "verl=file:///mirrors/v@1.git")
    command = build_command(Asked(base="mirror.example.com/cann:8.3", mirrors=mirrors), PERFORMANCE, "docker", {})
    found = arguments(command)
    assert found["MEGATRON_LM_REPOSITORY"] == "https://git.example.com/m.git"
    assert found["VERL_REPOSITORY"] == "file:///mirrors/v@1.git"
    assert found["BASE_IMAGE"] == "mirror.example.com/cann:8.3"


def test_a_proxy_is_named_and_its_value_is_not_told(checkout):
    given = {"https_proxy": "http://me:sesame@proxy.example.com:3128", "NO_PROXY": "localhost"}
    command = build_command(Asked(), PERFORMANCE, "docker", given)
    assert {"https_proxy", "NO_PROXY"} <= arguments(command).keys() and "sesame" not in " ".join(command)
    assert not values(command, "--network")
    local = build_command(Asked(), PERFORMANCE, "docker", {"http_proxy": "http://127.0.0.1:3128"})
    assert values(local, "--network") == ["host"]


def test_secrets_are_what_the_host_has(host):
    assert dict(secrets({"HOME": str(host.home)})).get("pip") in (None, "/etc/pip.conf")
    assert not list(secrets({"HOME": str(host.home), "PIP_CONFIG_FILE": os.devnull}))
    own = host.home / ".config" / "pip" / "pip.conf"
    own.parent.mkdir(parents=True)
    for path in (own, host.home / "ca.pem", host.home / ".netrc"):
        path.write_text("x")
    given = {"HOME": str(host.home), "SSL_CERT_FILE": "/nonexistent", "CURL_CA_BUNDLE": str(host.home / "ca.pem")}
    assert dict(secrets(given)) == {"pip": str(own), "ca": f"{host.home}/ca.pem", "netrc": f"{host.home}/.netrc"}
    assert "pip" not in dict(secrets({**given, "PIP_CONFIG_FILE": os.devnull}))


def test_the_certificate_that_pip_is_configured_with_is_handed_in(host):
    """Its path is the host's, which says nothing in the build."""
    pip, other, private = (host.home / name for name in ("pip.conf", "other.pem", "private.pem"))
    for path in (other, private):
        path.write_text("x")
    given = {"HOME": str(host.home), "PIP_CONFIG_FILE": str(pip)}
    for text, wanted in (
        (f"[global]\ncert = {private}\n", str(private)),
        (f"[global]\ncert = {other}\n[install]\ncert={private}\n", str(private)),
        ("[global]\ncert = /nonexistent\n", None),
        ("[global]\nindex-url = https://me:100%25@x.example/simple\n", None),
        ("no section\n", None),
    ):
        pip.write_text(text)
        assert dict(secrets(given)) == {"pip": str(pip)} | ({"ca": wanted} if wanted else {})
    pip.write_text(f"[global]\ncert = {private}\n")
    assert dict(secrets({**given, "SSL_CERT_FILE": str(other)}))["ca"] == str(other)


def test_the_dockerfile_knows_what_it_is_given(host, monkeypatch):
    """Each build argument, target and secret of the command stands in the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text()
    declared = set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    (host.home / ".netrc").write_text("x")
    for path in ("pip.conf", "ca.pem"):
        (host.home / path).write_text("x")
    given = {"HOME": str(host.home), "PIP_CONFIG_FILE": f"{host.home}/pip.conf", "PIP_CERT": f"{host.home}/ca.pem"}
    for name in matrices.names():
        matrix = matrices.load(name)
        git_components = [one for one, component in matrix.components.items() if component.install == "git"]
        mirrors = [f"{one}=https://git.example.com/{one}" for one in git_components]
        asked = Asked(name, base="x", mirrors=mirrors, snapshot="20251031T000000Z")
        command = build_command(asked, matrix, "docker", given)
        assert arguments(command).keys() <= declared
        assert re.search(rf"^FROM \S+ AS {values(command, '--target')[0]}$", text, re.MULTILINE)
        # Of the stages that this image is made from: all from `cpu-base` to `cpu`, or all after them.
        own, others = re.split(r"(?m)^(?=FROM \S+ AS base$)", text)
        for secret in values(command, "--secret"):
            assert f"type=secret,{secret.partition(',')[0]}" in (own if name == "cpu" else others)


# The engine, and what it says.


def test_the_first_engine_that_is_there_builds(host):
    with pytest.raises(UserError, match="expected docker or podman or buildah on this host, found none; install"):
        build.run(Asked())
    for engine in reversed(build.ENGINES):
        calls = host(engine)
        assert build.run(Asked()) == 0
        assert calls.read_text().splitlines()[0] == "build"
    calls = host("buildah")
    assert build.run(Asked(engine="buildah")) == 0 and calls.exists()
    with pytest.raises(UserError, match="--engine: expected docker, podman, buildah, found rkt"):
        build.run(Asked(engine="rkt"))


def test_the_engine_s_output_is_shown(host, capfd):
    host("docker", "#5 [build 2/9] RUN something\n")
    assert build.run(Asked()) == 0
    shown = capfd.readouterr().out
    assert "#5 [build 2/9] RUN something" in shown
    assert shown.endswith("built ascend-rl:performance; next: ./invokew image --print\n")
    assert build.run(Asked("cpu", tag="small")) == 0
    assert capfd.readouterr().out.endswith("built small; next: ./invokew image --print --matrix cpu --tag small\n")


def test_a_dry_run_starts_nothing(host, capsys):
    for engine, wanted in (("podman", "$ podman build"), ("docker", "$ DOCKER_BUILDKIT=1 docker build")):
        calls = host(engine)
        assert build.run(Asked(dry_run=True)) == 0
        assert capsys.readouterr().out.startswith(wanted) and not calls.exists()


# As Docker 20.10 says them, without buildx.
BUILDKIT_20 = "failed to solve with frontend dockerfile.v0: failed to create LLB definition: "
CANN = "quay.io/v2/ascend/cann/manifests/8.3.rc1-910b-ubuntu22.04-py3.11"
REGISTRIES = (
    f'failed to do request: Head "https://{CANN}": dial tcp: lookup quay.io on 192.0.2.53:53: no such host',
    "registry.example.com/cann:8: not found",
    "pulling from host registry.example.com failed with status code [manifests 8]: 401 Unauthorized",
    "failed to authorize: rpc error: code = Unknown desc = failed to fetch anonymous token: "
    "unexpected status: 401 Unauthorized",
)
FAILURES = (
    (
        "#8 1.1 image: sources: expected verl at commit 21271aa from x, found fatal: not our ref; name a mirror\n"
        "ERROR: failed to solve: process did not complete successfully: exit code: 1",
        "image: sources: expected verl at commit 21271aa from x, found fatal: not our ref; name a mirror",
    ),
    ("write /var/lib/docker/x: no space left on device", "the disk is full: free some space where docker keeps"),
    ("ERROR: quay.io/a/b:c: failed to resolve source metadata for quay.io/a/b:c", "the base image cannot be had"),
    ("Error: creating build container: unable to copy from source docker://a: reading manifest", "with --base"),
    *((f"{BUILDKIT_20}{said}", f"with --base (found: {BUILDKIT_20}{said})") for said in REGISTRIES),
    (f"{BUILDKIT_20}dockerfile parse error line 3: x", f"stopped: {BUILDKIT_20}dockerfile parse error line 3: x"),
    ("ERROR: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "Docker does not answer"),
    ("ERROR: BuildKit is enabled but the buildx component is missing or broken.", "install buildx"),
    ("something else\n\n", "something else"),
    ("", "docker said nothing"),
)


@pytest.mark.parametrize(("said", "line"), FAILURES)
def test_a_failed_build_says_why_in_one_line(host, said, line):
    host("docker", said, 1)
    with pytest.raises(UserError) as found:
        build.run(Asked())
    assert found.value.code == 1 and line in str(found.value) and "\n" not in str(found.value)


# Arguments.


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked("nope"), "unknown matrix 'nope'"),
        (Asked(mirrors=["ver=https://x/y"]), "--mirror: expected NAME=URL with one of verl, vllm"),
        (Asked(mirrors=["verl"]), "found 'verl'"),
        (Asked(mirrors=["verl=/a b"]), "--mirror: expected"),
        (Asked(mirrors=["torch=https://x/y"]), "found 'torch=https://x/y'"),
        (Asked("cpu", mirrors=["verl=https://x/y"]), "nothing is built from git"),
        (Asked(mirrors=["verl=git@x:y.git"]), "the URL is one of https, http or file, found 'verl=git@x:y.git'"),
        (Asked(mirrors=["verl=ssh://x/y"]), "the URL is one of https, http or file"),
        (Asked(mirrors=["verl=https://me:word@x/y"]), "expected no user, token or password in it"),
        (Asked(mirrors=["verl=https://word@x/y"]), "--mirror verl: expected no user, token or password in it"),
        (Asked(mirrors=["verl=http://a@word@x/y"]), "put it into ~/.netrc"),
        (Asked(mirrors=["ver=https://word@x/y"]), "found 'ver=https://x/y'"),
        (Asked(base="--privileged"), "--base: expected the name of an image"),
        (Asked(snapshot="2025-10-31"), "--snapshot: expected a time as 20251031T000000Z, found '2025-10-31'"),
        (Asked(facts="x"), "--facts: expected --print beside it"),
        (Asked(show=True, dry_run=True), "--print: expected none of --dry-run"),
        (Asked(show=True, engine="buildah"), "--engine: expected docker, podman, found buildah"),
    ],
)
def test_bad_arguments_are_refused(host, asked, message):
    host("docker")
    with pytest.raises(UserError, match=re.escape(message)) as found:
        build.run(asked)
    assert found.value.code == 2 and "word" not in str(found.value).replace("password", "")


@pytest.mark.parametrize("matrix", ["performance", "cpu"])
def test_a_release_wants_a_digest(host, checkout, matrix):
    calls = host("docker")
    with pytest.raises(UserError, match=r"--release: expected a base image with its digest, found \S+:\S+; --base"):
        build.run(Asked(matrix, release=True))
    for tampered in (DIGEST[:-1], DIGEST + "x", "cann@sha256:8.3"):
        with pytest.raises(UserError, match="expected a base image with its digest"):
            build.run(Asked(matrix, release=True, base=tampered))
    assert not calls.exists()
    assert build.run(Asked(matrix, release=True, base=DIGEST)) == 0
    assert f"{build.base_argument(matrices.load(matrix))}={DIGEST}" in calls.read_text().splitlines()


def test_a_release_wants_a_checkout_without_edits(host, checkout):
    host("docker")
    for name in ("Dockerfile", "added.py"):
        (checkout / name).write_text("edited")
        with pytest.raises(UserError, match=f"--release: expected a checkout without edits, found {name}"):
            build.run(Asked(release=True, base=DIGEST))
        assert build.run(Asked(base=DIGEST)) == 0
        git(checkout, "add", ".")
        git(checkout, "commit", "-q", "-m", "next")
    shutil.rmtree(checkout / ".git")
    with pytest.raises(UserError, match="--release: expected a git checkout"):
        build.run(Asked(release=True, base=DIGEST))
