"""Facts must be had on any machine, whatever is missing or hangs, and must not tell secrets."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from checks import facts

SECTIONS = [
    "system",
    "cpu",
    "memory",
    "disk",
    "python",
    "packages",
    "environment",
    "devices",
    "limits",
    "tools",
    "project",
]


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def ends(pids: Path) -> bool:
    """Whether the processes whose ids the file holds are gone within ten seconds."""
    for pid in pids.read_text().split():
        status, deadline = Path(f"/proc/{pid}/stat"), time.monotonic() + 10
        while status.exists() and status.read_text().rpartition(") ")[2][0] != "Z":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def test_every_subject_is_there_and_the_whole_is_json():
    found = facts.collect()
    assert [key for key in found if key not in ("format", "time")] == SECTIONS
    assert json.loads(json.dumps(found)) == found


def test_it_agrees_with_the_machine():
    found = facts.collect()
    assert found["system"]["kernel"] == os.uname().release
    assert found["cpu"]["usable"] == len(os.sched_getaffinity(0))
    assert found["memory"]["total"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found["packages"]["invoke"] == __import__("invoke").__version__


def test_every_limit_is_below_two_seconds():
    assert facts.COMMAND_SECONDS < facts.COMMANDS_SECONDS < facts.SECTION_SECONDS < 2


def test_secrets_are_not_told(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef")
    monkeypatch.setenv("RAY_SOME_API_KEY", "ray_abcdef")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass_abcdef@proxy:3128")
    monkeypatch.setenv("SOMETHING_ELSE", "else_abcdef")
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1200")
    found = facts.collect()
    assert "abcdef" not in json.dumps(found)
    assert found["environment"]["HTTPS_PROXY"] == "http://(redacted)@proxy:3128"
    assert found["environment"]["HCCL_CONNECT_TIMEOUT"] == "1200"


def test_what_cannot_be_read_is_unknown_with_the_reason(monkeypatch):
    monkeypatch.setattr(facts, "_cpu_quota", lambda: 1 / 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    found = facts.collect()
    assert found["cpu"]["quota"] == {"unknown": "ZeroDivisionError: division by zero"}
    assert facts.is_unknown(found["project"]["commit"]) and "git" in found["project"]["commit"]["unknown"]
    assert facts.is_unknown(found["tools"]["g++"])
    assert not facts.is_unknown(found["memory"])


def test_a_command_that_hangs_costs_its_own_fact_only(tmp_path, monkeypatch):
    # the background child keeps the pipe open after its parent is gone
    program(tmp_path, "git", f"sleep 60 & echo $! >> '{tmp_path}/children'; sleep 60")
    program(tmp_path, "g++", "echo g++ 99")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    found = facts.collect()
    assert time.monotonic() - began < 10
    project = found["project"]
    assert facts.is_unknown(project) or facts.is_unknown(project["commit"])
    assert found["tools"]["g++"] == "g++ 99"
    assert ends(tmp_path / "children")


def test_a_command_that_fails_is_quoted(tmp_path, monkeypatch):
    program(tmp_path, "npu-smi", "echo 'dcmi init failed' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert facts.collect()["devices"]["npu_smi"] == {"unknown": "RuntimeError: npu-smi ended with 3: dcmi init failed"}


def test_a_file_system_that_hangs_costs_its_own_subject_only(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: time.sleep(30))
    began = time.monotonic()
    found = facts.collect()
    assert time.monotonic() - began < 10
    assert facts.is_unknown(found["disk"])
    assert not facts.is_unknown(found["packages"])


@pytest.mark.parametrize("text", ["", "nothing", "Version=25.2.1\npackage_version=25.2.1\n"])
def test_version_files(tmp_path, text):
    path = tmp_path / "version.info"
    path.write_text(text)
    assert facts._version_file(str(path)).get("Version") == ("25.2.1" if "=" in text else None)


def test_the_commit_is_that_of_the_checkout():
    project = facts.collect()["project"]
    head = Path(project["path"]) / ".git" / "HEAD"
    if not head.exists():
        pytest.skip("not a git checkout")
    assert len(project["commit"]) == 40
