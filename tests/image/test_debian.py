"""Debian's packages: what is missing is installed, from the archive as it was at a time where one is named.

The script's end, which tidies the image and names its user, is for images only and left out.
"""

import subprocess

import pytest

from tests.image.context import ROOT

DEBIAN = """
# http://deb.debian.org/debian, as it is in a comment
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
"""
UBUNTU = """
deb http://archive.ubuntu.com/ubuntu/ jammy main universe
deb http://security.ubuntu.com/ubuntu jammy-security main universe
deb [arch=arm64] http://ports.ubuntu.com/ubuntu-ports/ jammy main universe
"""
TIME = "20251031T000000Z"
AWAY = "W: Failed to fetch http://archive.ubuntu.com/ubuntu/dists/jammy/InRelease  Temporary failure resolving"


@pytest.fixture
def install(tmp_path):
    """Runs the script on a list of sources; `apt-get` says what it would read."""
    (tmp_path / "bin").mkdir()
    programs = {
        "dpkg-query": "exit 1",
        "apt-get": """for word in "$@"; do
            case $word in Dir::Etc::SourceList=*|Dir::Etc::SourceParts=*)
                find "${word#*=}" -type f -exec grep -Eho "[a-z]+://[^ ]+" {} +;; esac
        done >>"$SAID"
        echo "http_proxy=$http_proxy" >"$SAID.proxy"
        if [ -n "$FAIL" ]; then echo "$FAIL"; exit 100; fi""",
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    text = (ROOT / "image" / "debian.sh").read_text().partition("# Lists, caches")[0]
    (tmp_path / "debian.sh").write_text(text.replace("sources=/etc/apt", f"sources={tmp_path}"))
    (tmp_path / "debian.txt").write_text((ROOT / "image" / "debian.txt").read_text())

    def run(name: str, sources: str, snapshot: str = "", fail: str = "", **environment: str):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(sources)
        (tmp_path / "said").write_text("")
        variables = {"APT_SNAPSHOT": snapshot, "FAIL": fail, "SAID": str(tmp_path / "said"), **environment}
        variables["PATH"] = f"{tmp_path}/bin:/usr/bin:/bin"
        command = ["sh", tmp_path / "debian.sh", "cpu"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert (tmp_path / name).read_text() == sources
        return done, sorted(set((tmp_path / "said").read_text().split()))

    return run


def test_what_is_missing_is_installed_from_the_bases_own_sources(install):
    done, read = install("sources.list.d/debian.sources", DEBIAN)
    assert done.returncode == 0 and done.stdout == "installed ca-certificates python3.11 libgomp1\n" and read == []


@pytest.mark.parametrize(
    ("name", "sources", "wanted"),
    [
        (
            "sources.list.d/debian.sources",
            DEBIAN,
            [f"http://snapshot.debian.org/archive/{one}/{TIME}/" for one in ("debian-security", "debian")],
        ),
        ("sources.list", UBUNTU, [f"https://snapshot.ubuntu.com/ubuntu/{TIME}/"]),
    ],
)
def test_a_snapshot_takes_the_place_of_every_archive(install, name, sources, wanted):
    done, read = install(name, sources, TIME)
    assert done.returncode == 0, done.stderr
    assert read == wanted


def test_apt_knows_a_proxy_by_one_name_only(install, tmp_path):
    proxy = "http://proxy.example.com:3128"
    for name in ("http_proxy", "HTTP_PROXY"):
        assert install("sources.list", UBUNTU, **{name: proxy})[0].returncode == 0
        assert (tmp_path / "said.proxy").read_text() == f"http_proxy={proxy}\n"


@pytest.mark.parametrize(
    ("snapshot", "sources", "fail", "said"),
    [
        ("2025-10-31", UBUNTU, "", "expected APT_SNAPSHOT as 20251031T000000Z, found 2025-10-31; "),
        (TIME, "deb http://mirror.example.com/ubuntu jammy main\n", "", "found http://mirror.example.com/ubuntu; "),
        (TIME, UBUNTU, "E: Unable to correct problems", "found E: Unable to correct problems; choose an APT_SNAPSHOT "),
        ("", UBUNTU, "E: Unable to locate package x", "found E: Unable to locate package x; check the base image's "),
        ("", UBUNTU, f"{AWAY}\nE: Unable to locate package x", f"found {AWAY}; check the base image's "),
        ("", UBUNTU, "one\ntwo", "found two; check the base image's "),
    ],
)
def test_what_cannot_be_is_one_line(install, snapshot, sources, fail, said):
    done, _ = install("sources.list", sources, snapshot, fail)
    assert done.returncode == 1 and said in done.stderr
    assert done.stderr.startswith("image: debian: expected ") and done.stderr.count("\n") == 1
