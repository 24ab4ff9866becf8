"""The script that installs Debian's packages, with another apt-get: what it hands to it, and how it fails."""

import shutil
import subprocess

import pytest

from tests.image.chapter import ROOT

REAL = ("awk", "dirname", "grep", "head", "mktemp", "sh", "tail")


@pytest.fixture
def installed(tmp_path):
    """Runs it with nothing else on its path than what it may do here; nothing is installed or removed."""
    for name in REAL:
        (tmp_path / name).symlink_to(shutil.which(name))
    for name, body in {"rm": "", "getent": "", "dpkg-query": "", "apt-get": "env >> $LOG; exit $CODE"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "env").symlink_to(shutil.which("env"))

    def run(code: int = 0, **environment: str) -> tuple[subprocess.CompletedProcess, str]:
        log = tmp_path / "log"
        own = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path), "LOG": str(log), "CODE": str(code)}
        command = [tmp_path / "sh", ROOT / "image" / "debian.sh", "cpu"]
        log.unlink(missing_ok=True)
        done = subprocess.run(command, env={**environment, **own}, capture_output=True, text=True)
        return done, log.read_text()

    return run


def test_apt_knows_a_proxy_by_one_name_only(installed):
    proxy = "http://proxy.example.com:3128"
    for name in ("http_proxy", "HTTP_PROXY"):
        done, seen = installed(**{name: proxy})
        assert done.returncode == 0 and f"\nhttp_proxy={proxy}\n" in f"\n{seen}"


def test_a_failure_is_one_line_that_names_the_proxy(installed):
    done, _ = installed(code=100)
    assert done.returncode == 1
    assert done.stderr.startswith("image: debian: expected to install") and "--build-arg http_proxy=URL" in done.stderr
