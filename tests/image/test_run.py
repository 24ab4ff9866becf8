"""What runs the image: the printed script and compose.yaml, for the hosts that they are for, and against each other."""

import json
import os
import pty
import re
import shlex
import subprocess
from itertools import pairwise

import invoke
import pytest
import yaml

import matrix as matrices
import tasks
from checks.doctor import container as container_checks
from checks.doctor import host as host_checks
from checks.doctor.document import Facts
from checks.facts import image as image_facts
from errors import UserError
from image import build, run
from image.build import Asked
from tests.checks.doctor.machines import GONE, document
from tests.image.chapter import ROOT

A2, A3, LAPTOP = "fit-a2-host", "a3", "no-npu"
TAG = "ascend-rl:performance"


def facts(machine: str, change: dict | None = None) -> Facts:
    return Facts(document(machine, change))


def script(of: Facts) -> str:
    return run.script(run.container(of), TAG, "performance", "docker")


def started(text: str, folder, *arguments: str, terminal: int | None = None, **environment: str) -> list[str]:
    """The arguments that the engine gets when a shell runs the script, on a terminal where there is one."""
    program, words = folder / "docker", folder / "words"
    program.write_text(f'#!/bin/sh\nfor one in "$@"; do printf "%s\\0" "$one"; done > {words}\n')
    program.chmod(0o755)
    (folder / "ascend-rl.sh").write_text(text)
    done = subprocess.run(
        ["sh", folder / "ascend-rl.sh", *arguments],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.PIPE,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return words.read_text().split("\0")[:-1]


def values(command: list[str], *options: str) -> list[str]:
    return [after for word, after in pairwise(command) if word in options]


# The script.


@pytest.mark.parametrize(("machine", "chips"), [(A2, 8), (A3, 16)])
def test_a_host_s_own_devices_and_driver_are_given(tmp_path, machine, chips):
    text = script(facts(machine))
    command = started(text, tmp_path, "train", "--recipe", "a b")
    devices = values(command, "--device")
    assert [one for one in devices if re.fullmatch(r"/dev/davinci\d+", one)] == [
        f"/dev/davinci{n}" for n in range(chips)
    ]
    assert devices[chips:] == ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert [one for one in values(command, "-v") if one.endswith(":ro")] == [
        f"{place}:{place}:ro"
        for place in (
            "/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/ascend_install.info", "/etc/hccn.conf",
            "/usr/local/bin/npu-smi",
        )
    ]  # fmt: skip
    assert values(command, "--network") == ["host"] and values(command, "--group-add") == ["1000"]
    assert command[:2] == ["run", "--rm"] and command[-4:] == [TAG, "train", "--recipe", "a b"]
    assert f"# NPUs of this host: {chips}" in text


def test_what_the_host_lacks_is_not_given_and_said():
    text = script(
        facts(A2, {"container/given/hccn_conf": False, "npu/tool": None, "npu/nodes/10": GONE, "npu/nodes/7": GONE})
    )
    assert "not on this host: /etc/hccn.conf" in text and "not on this host: npu-smi" in text
    assert "expected /dev/hisi_hdc, found none" in text and "# NPUs of this host: 7" in text
    command = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in command if "hccn" in line or "hisi_hdc" in line or "davinci7" in line]


def test_a_terminal_is_passed_on_where_there_is_one(tmp_path):
    """`bash` needs one; without one the engines refuse -t."""
    text = script(facts(LAPTOP))
    assert not {"-it", "-i", "-t"} & set(started(text, tmp_path, "bash"))
    ours, theirs = pty.openpty()
    try:
        command = started(text, tmp_path, "bash", terminal=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert command[-3:] == ["-it", TAG, "bash"]


def test_further_options_are_added_before_the_image(tmp_path):
    given = "--user 0:0 -v /data:/data:ro"
    command = started(script(facts(A2)), tmp_path, "doctor", ASCEND_RL_OPTIONS=given)
    assert command[-6:] == [*given.split(), TAG, "doctor"] and values(command, "--user") == ["0:0"]


@pytest.mark.parametrize(
    ("node", "groups", "note"),
    [
        ({"mode": "0o660", "group": 2001}, [1000, 2001], ""),
        ({"mode": "0o666", "group": 0}, [1000], ""),
        ({"mode": "0o600", "group": 1000}, [1000], "/dev/davinci3 is open to root only (mode 600, group 1000)"),
        ({"mode": "0o660", "group": 0}, [1000], "/dev/davinci3 is open to root only (mode 660, group 0)"),
    ],
)
def test_the_groups_of_the_device_files(node, groups, note):
    made = run.container(facts(A2, {f"npu/nodes/3/{name}": value for name, value in node.items()}))
    assert sorted(made.groups) == groups
    assert note in "\n".join(made.notes) and ("root only" in "\n".join(made.notes)) == bool(note)


@pytest.mark.parametrize("change", [{}, {"npu/nodes": {"unknown": "OSError: /dev"}}, {"npu": {"unknown": "too slow"}}])
def test_without_npus_the_emulated_ones_are_used_and_it_says_why(tmp_path, change):
    text = script(facts(LAPTOP, change))
    assert "# no NPU on this host: " in text and "train --recipe smoke" in text
    command = started(text, tmp_path, "doctor")
    assert not values(command, "--device", "--group-add", "--network") and command[-2:] == [TAG, "doctor"]
    assert values(command, "--shm-size") == ["16g"]


@pytest.mark.parametrize("machine", [A2, A3, LAPTOP])
def test_nothing_is_given_that_is_not_needed(tmp_path, machine):
    command = started(script(facts(machine)), tmp_path)
    assert not {"--privileged", "--cap-add", "--ipc", "--pid", "--user"} & set(command)
    assert not [one for one in values(command, "-v") if one.split(":")[0] in ("/", "/dev", "/usr", "/home", "/data")]


def test_volumes_can_be_named_by_variables(tmp_path):
    text = script(facts(A2))
    names = {place: name for name, _, place in run.VOLUMES}
    usual = {one.split(":")[1]: one.split(":")[0] for one in values(started(text, tmp_path), "-v")[-3:]}
    assert list(usual.values()) == ["ascend-rl-runs", "ascend-rl-assets", "ascend-rl-cache-performance"]
    for place, name in names.items():
        assert f"/data/a b:{place}" in values(started(text, tmp_path, **{name: "/data/a b"}), "-v")


def test_the_doctor_is_content_with_what_is_given():
    """The limits are those that its checks ask for, the mounts those that it looks at."""
    assert run.LIMITS["nofile"] >= host_checks.OPEN_FILES
    for shared in (run.SHARED_NPU, run.SHARED_EMULATED):
        assert int(shared.removesuffix("g")) * host_checks.GIB >= host_checks.SHARED
    given = " ".join(place for _, place, _ in run.DRIVER)
    asked = re.findall(r'_given\(case, "\w+", "(/[^"]+)"', (ROOT / "checks/doctor/container.py").read_text())
    assert len(asked) >= 4 and container_checks
    assert all(any(path == one or path.startswith(one + "/") for one in given.split()) for path in asked)


# compose.yaml.


def interpolated(text: str, environment: dict[str, str]) -> str:
    """As the compose specification has it: ${NAME:-default}."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environment.get(match[1]) or match[2], text)


def compose(**environment: str) -> dict:
    return yaml.safe_load(interpolated((ROOT / "compose.yaml").read_text(), environment))


def as_options(service: dict, volumes: dict) -> list[str]:
    """A service in the words of `docker run`."""
    words = ["--init"] if service["init"] else []
    words += ["--stop-timeout", service["stop_grace_period"].removesuffix("s")]
    words += ["--network", service["network_mode"]] if "network_mode" in service else []
    words += ["--shm-size", service["shm_size"], "--pids-limit", str(service["pids_limit"])]
    words += [word for name, limit in service["ulimits"].items() for word in ("--ulimit", f"{name}={limit}")]
    for device in service.get("devices", ()):
        outside, inside = device.split(":")
        assert outside == inside
        words += ["--device", outside]
    words += [word for group in service.get("group_add", ()) for word in ("--group-add", group)]
    for mount in service["volumes"]:
        if isinstance(mount, dict):
            assert mount["type"] == "bind" and mount["read_only"] and not mount["bind"]["create_host_path"]
            words += ["-v", f"{mount['source']}:{mount['target']}:ro"]
        else:
            name, _, place = mount.partition(":")
            words += ["-v", f"{volumes.get(name, {}).get('name', name)}:{place}"]
    return words


@pytest.mark.parametrize(
    ("service", "machine", "tag", "matrix", "environment"),
    [
        ("doctor", A2, TAG, "performance", {}),
        ("doctor", A2, TAG, "performance", {"ASCEND_RL_NPU_SMI": "/usr/local/sbin/npu-smi"}),
        ("train", A2, "ascend-rl:commercial", "commercial", {"ASCEND_RL_MATRIX": "commercial"}),
        ("train", A2, TAG, "performance", {"ASCEND_RL_RUNS": "/data/runs", "ASCEND_RL_ASSETS": "/data/assets"}),
        ("smoke", LAPTOP, "ascend-rl:cpu", "cpu", {}),
    ],
)
def test_compose_says_what_the_script_says(tmp_path, service, machine, tag, matrix, environment):
    """But for hccn.conf, without which a host with one node does: compose.yaml cannot leave a mount to the host."""
    found = compose(**environment)
    one = found["services"][service]
    tool = environment.get("ASCEND_RL_NPU_SMI", "/usr/local/bin/npu-smi")
    host = facts(machine, {"container/given/hccn_conf": False, "npu/tool": tool})
    made = run.container(host) if machine == A2 else run.emulated("no NPU")
    command = started(run.script(made, tag, matrix, "docker"), tmp_path, *one["command"], **environment)
    assert command == ["run", "--rm", *as_options(one, found["volumes"]), one["image"], *one["command"]]


def test_compose_takes_what_the_command_line_built():
    """And builds and pulls nothing: it could hand no secrets to a build."""
    for name in ("performance", "commercial"):
        for service in compose(ASCEND_RL_MATRIX=name)["services"].values():
            assert service["pull_policy"] == "never" and "build" not in service
            assert service["image"] in [build.tag(Asked(), matrices.load(one)) for one in (name, "cpu")]


# What the compose specification allows for the keys that are used here (compose-spec, 05-services.md).
KEYS = {
    "command": list, "devices": list, "group_add": list, "image": str, "init": bool, "network_mode": str,
    "pids_limit": int, "profiles": list, "pull_policy": str, "shm_size": str, "stop_grace_period": str, "ulimits": dict,
    "volumes": list,
}  # fmt: skip


def test_compose_is_one():
    found = compose()
    assert {one for one in found if not one.startswith("x-")} == {"services", "volumes"}
    used = set()
    for service in found["services"].values():
        for key, value in service.items():
            assert isinstance(value, KEYS[key]), key
        assert not {"privileged", "cap_add"} & service.keys()
        assert all(isinstance(word, str) for word in [*service["command"], *service.get("group_add", ())])
        used |= {one.split(":")[0] for one in service["volumes"] if isinstance(one, str)}
    assert used == set(found["volumes"])


# With the image.


def test_volumes_are_the_folders_that_the_image_lets_its_user_write():
    text = (ROOT / "Dockerfile").read_text()
    writable = re.findall(r"^RUN install -d -o 1000 -g 1000 (.+)$", text, re.MULTILINE)
    assert len(writable) == 2
    for line in writable:
        assert set(line.split()) == {place for _, _, place in run.VOLUMES}
    assert set(re.findall(r"^USER (\S+)$", text.partition("AS cpu\n")[2].replace("USER 0\n", ""), re.MULTILINE)) == {
        "1000:1000"
    }


def test_the_manifest_is_where_the_image_has_it():
    import manifest

    assert (image_facts.MANIFEST, image_facts.VARIABLE, image_facts.FORMAT) == (
        manifest.PLACE,
        manifest.VARIABLE,
        manifest.FORMAT,
    )


# The command.


def test_print_for_this_host_and_for_another(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    saved = tmp_path / "facts.json"
    saved.write_text(json.dumps(document(A2)))
    assert build.run(Asked(show=True, facts=str(saved))) == 0
    shown = capsys.readouterr().out
    assert shown == run.script(run.container(facts(A2)), TAG, "performance", "docker")
    assert build.run(Asked("cpu", show=True, tag="small")) == 0
    shown = capsys.readouterr().out
    assert shlex.split(shown, comments=True)[-2:] == ["small", "$@"] and "the image of the matrix cpu" in shown
    with pytest.raises(UserError, match="expected a facts document"):
        build.run(Asked(show=True, facts=str(tmp_path / "none.json")))


def test_an_image_prints_how_it_is_run_itself(tmp_path, monkeypatch, capsys):
    """And another image where that is asked for."""
    described = tmp_path / "manifest.json"
    described.write_text('{"format": 1, "matrix": "commercial"}')
    monkeypatch.setenv(image_facts.VARIABLE, str(described))
    saved = tmp_path / "facts.json"
    saved.write_text(json.dumps(document(A2)))
    for named, printed in ((None, "commercial"), ("performance", "performance")):
        tasks.image(invoke.Context(), named, print=True, facts=str(saved))
        shown = capsys.readouterr().out
        assert shlex.split(shown, comments=True)[-2:] == [f"ascend-rl:{printed}", "$@"]
        assert f"ascend-rl-cache-{printed}" in shown


def test_print_uses_the_engine_that_runs_containers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, wanted in (("buildah", "docker"), ("podman", "podman"), ("docker", "docker")):
        (tmp_path / name).touch(0o755)
        build.run(Asked("cpu", show=True))
        assert f"\n{wanted} run \\\n" in capsys.readouterr().out
