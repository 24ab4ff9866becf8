"""Facts must be had on any machine, whatever is missing or hangs, and must not tell secrets."""

import ast
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from checks import facts
from checks.facts import builds, image, npu, packages, paths, reading, system

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60  # seconds; the machine may be busy
SECTIONS = [
    *(
        "system",
        "cpu",
        "memory",
        "disk",
        "limits",
        "npu",
        "cann",
        "container",
        "image",
        "network",
        "python",
        "packages",
        "stack",
    ),
    *("ray", "builds", "environment", "paths", "tools", "project"),
]


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty machine below a folder; what it has is put there. Programs go into `bin`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(reading, "ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


def write(machine: Path, path: str, text: str) -> None:
    file = machine / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


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
    found = facts.collect(seconds=PATIENCE)
    assert [key for key in found if key not in ("format", "time")] == SECTIONS
    assert json.loads(json.dumps(found)) == found


def test_it_agrees_with_the_machine():
    found = facts.collect(seconds=PATIENCE)
    assert found["system"]["kernel"] == os.uname().release
    assert found["cpu"]["usable"] == len(os.sched_getaffinity(0))
    assert found["memory"]["total"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found["packages"]["invoke"] == __import__("invoke").__version__
    assert "127.0.0.1" in {row["name"]: row for row in found["network"]["interfaces"]}["lo"]["addresses"]
    assert found["stack"]["torch_cxx11_abi"] == 1  # since torch 2.6 wheels have no other
    assert found["builds"]["file_system"] in (None, *Path("/proc/filesystems").read_text().split())


def test_what_is_inside_is_done_before_what_is_around_it():
    assert 0 < 4 * reading.STEP_SECONDS < reading.SECTION_SECONDS < 2


def test_secrets_are_not_told(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef")
    monkeypatch.setenv("RAY_SOME_API_KEY", "ray_abcdef")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass_abcdef@proxy:3128")
    monkeypatch.setenv("SOMETHING_ELSE", "else_abcdef")
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1200")
    found = facts.collect(seconds=PATIENCE)
    assert "abcdef" not in json.dumps(found)
    assert found["environment"]["HTTPS_PROXY"] == "http://(redacted)@proxy:3128"
    assert found["environment"]["HCCL_CONNECT_TIMEOUT"] == "1200"


def test_what_cannot_be_read_is_unknown_with_the_reason(monkeypatch):
    monkeypatch.setattr(system, "_cpu_quota", lambda: 1 / 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    found = facts.collect(seconds=PATIENCE)
    assert found["cpu"]["quota"] == {"unknown": "ZeroDivisionError: division by zero"}
    assert facts.is_unknown(found["project"]["commit"]) and "git" in found["project"]["commit"]["unknown"]
    assert facts.is_unknown(found["tools"]["g++"])
    assert not facts.is_unknown(found["memory"])


def test_a_command_that_hangs_costs_its_own_fact_only(machine, monkeypatch):
    # the background child keeps the pipe open after its parent is gone
    program(machine / "bin", "npu-smi", f"sleep 60 & echo $! >> '{machine}/children'; sleep 60")
    program(machine / "bin", "g++", "echo g++ 99")
    began = time.monotonic()
    found = facts.collect(seconds=3)
    assert time.monotonic() - began < 10
    assert facts.is_unknown(found["npu"]["boards"]) or "did not end" in found["npu"]["smi"]["failed"]
    assert found["tools"]["g++"] == "g++ 99"
    assert ends(machine / "children")


def test_a_file_system_that_hangs_costs_its_own_subject_only(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: time.sleep(30))
    began = time.monotonic()
    found = facts.collect(seconds=3)
    assert time.monotonic() - began < 10
    assert facts.is_unknown(found["disk"])
    assert not facts.is_unknown(found["packages"])


def test_an_npu_host(machine, vendor):
    """A whole host, from the files and commands that the vendor's software has."""
    write(machine, "/usr/local/Ascend/driver/version.info", vendor("driver-version.info"))
    write(machine, "/usr/local/Ascend/firmware/version.info", vendor("firmware-version.info"))
    home = "/usr/local/Ascend/ascend-toolkit/8.3.RC1"
    write(machine, f"{home}/aarch64-linux/ascend_toolkit_install.info", vendor("ascend_toolkit_install.info"))
    write(machine, f"{home}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/x.o", "")
    (machine / home.lstrip("/")).with_name("latest").symlink_to("8.3.RC1")
    write(machine, "/usr/local/Ascend/nnal/atb/latest/version.info", vendor("nnal-version.info"))
    write(machine, "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libatb.so", "")
    for name in ("davinci0", "davinci1", "davinci_manager", "hisi_hdc"):
        write(machine, f"/dev/{name}", "")
    write(machine, "/sys/bus/pci/devices/0000:c1:00.0/vendor", "0x19e5\n")
    write(machine, "/sys/bus/pci/devices/0000:c1:00.0/device", "0xd802\n")
    write(machine, "table", vendor("npu-smi-a2.txt"))
    write(machine, "board", vendor("board.txt"))
    program(
        machine / "bin",
        "npu-smi",
        f'case "$*" in "info -l") printf "\\tNPU ID  : 0\\n\\tNPU ID  : 1\\n" ;; *board*) cat {machine}/board ;; '
        f"*) cat {machine}/table ;; esac",
    )
    program(
        machine / "bin",
        "hccn_tool",
        'case "$*" in *-link*) echo link status: UP ;; *-ip*) echo "ipaddr:10.20.$2.11"; echo netmask:255.255.0.0 ;; '
        '*-tls*) echo "dev_id:$2, tls switch[0](0:disable, 1:enable)" ;; *) echo "no permission" >&2; exit 1 ;; esac',
    )
    found = facts.collect(seconds=PATIENCE)
    npu, cann = found["npu"], found["cann"]
    assert npu["bus"] == [{"address": "0000:c1:00.0", "device": "0xd802", "chip": "910B"}]
    assert [row["name"] for row in npu["nodes"]] == ["davinci0", "davinci1", "davinci_manager", "hisi_hdc"]
    assert (npu["driver"]["release"], npu["firmware"]["release"]) == ("25.2.1", "25.2.1")
    assert len(npu["smi"]["chips"]) == 8 and npu["boards"]["1"]["compatibility"] == "OK"
    assert npu["ports"]["1"]["address"] == "10.20.1.11" and npu["ports"]["0"]["tls"] is False
    assert "no permission" in npu["ports"]["0"]["net_health"]["unknown"]
    assert [(one["version"], one["machine"], one["latest"]) for one in cann["toolkits"]] == [
        ("8.3.RC1", "aarch64", True)
    ]
    assert cann["kernels"] == ["ascend910b"] and cann["nnal"]["abis"] == ["cxx_abi_1"]
    assert cann["libraries"]["libatb.so"]["loads"] is False


def test_a_driver_that_refuses_is_quoted_with_its_code(machine):
    program(machine / "bin", "npu-smi", "echo 'dcmi module initialize failed. ret is -8005'; exit 255")
    found = facts.collect(seconds=PATIENCE)["npu"]["smi"]
    assert found["code"] == -8005 and "dcmi module initialize failed" in found["failed"]


def test_a_container_is_told_from_a_host(machine):
    write(machine, "/proc/1/cgroup", "0::/init.scope\n")
    assert facts.collect(seconds=PATIENCE)["container"]["kind"] is None
    write(machine, "/.dockerenv", "")
    assert facts.collect(seconds=PATIENCE)["container"]["kind"] == "docker"


def test_the_manifest_of_an_image(machine, monkeypatch):
    assert image.image() is None
    write(machine, image.MANIFEST, json.dumps({"format": 1, "matrix": "commercial", "packages": {"verl": "0.6.0"}}))
    assert image.image()["packages"] == {"verl": "0.6.0"}
    write(machine, "other.json", json.dumps({"format": 1, "matrix": "cpu"}))
    monkeypatch.setenv(image.VARIABLE, f"{machine}/other.json")
    assert image.image()["matrix"] == "cpu"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": "1"}', '"text"'])
def test_a_manifest_that_is_none_is_unknown(machine, text):
    write(machine, image.MANIFEST, text)
    with pytest.raises(ValueError):
        image.image()
    assert facts.is_unknown(reading.guarded(image.image))


def test_npu_smi_is_found_beside_the_path_too(machine, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert npu.npu(1.0)["tool"] is None
    write(machine, "/usr/local/sbin/npu-smi", "")
    assert npu.npu(1.0)["tool"].endswith("/usr/local/sbin/npu-smi")


def test_without_psutil_interfaces_alone_are_unknown(monkeypatch):
    monkeypatch.setattr(facts.network, "psutil", None)
    found = facts.collect(seconds=PATIENCE)["network"]
    assert facts.is_unknown(found["interfaces"]) and not facts.is_unknown(found["local_ports"])


def test_cann_s_own_packages_are_not_the_environment_s(tmp_path, monkeypatch):
    home = tmp_path / "toolkit" / "latest"
    for place, name in ((home / "python" / "site-packages", "te-of-cann"), (tmp_path / "mine", "mine")):
        (place / f"{name}-1.0.dist-info").mkdir(parents=True)
        (place / f"{name}-1.0.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        monkeypatch.syspath_prepend(place)
    assert packages.versions().keys() >= {"te-of-cann", "mine"}
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(home))
    assert "mine" in packages.versions() and "te-of-cann" not in packages.versions()


def test_stale_locks_are_found(tmp_path, monkeypatch):
    write(tmp_path, "py311_cpu/gmm/lock", "")
    old = time.time() - 7200
    os.utime(tmp_path / "py311_cpu/gmm/lock", (old, old))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (lock,) = builds.builds()["locks"]
    assert lock["path"].endswith("gmm/lock") and 7000 < lock["age_seconds"] < 7400


def test_the_paths_of_a_recipe(tmp_path):
    write(tmp_path, "model/config.json", "{}")
    found = paths.paths({"model": f"{tmp_path}/model", "data": f"{tmp_path}/data/train.parquet"})
    assert found["model"]["exists"] and found["model"]["entries"] == 1
    assert not found["data"]["exists"] and found["data"]["writable"] and found["data"]["file_system"]


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(
        ["git", "-C", folder, *name, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_of_a_checkout_is_read_from_its_files(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert packages.commit_of(tmp_path) == head
    git(tmp_path, "pack-refs", "--all")
    assert packages.commit_of(tmp_path) == head
    git(tmp_path, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    assert packages.commit_of(tmp_path / "tree") == head
    git(tmp_path, "checkout", "-q", "--detach")
    assert packages.commit_of(tmp_path) == head
    assert packages.commit_of(tmp_path / ".git" / "refs") is None


FILES = [*(ROOT / "checks" / "facts").glob("*.py"), ROOT / "checks" / "secrets.py", ROOT / "checks" / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_host_s_python_can_be_3_9(file):
    ast.parse(file.read_text(), feature_version=(3, 9))


def test_it_runs_on_python_3_9():
    places = [*Path.home().glob(".pyenv/versions/3.9.*/bin/python"), shutil.which("python3.9")]
    if not places[0]:
        pytest.skip("no Python 3.9 on this machine")
    done = subprocess.run([places[0], "-m", "checks.facts"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["python"]["version"].startswith("3.9.")
    assert [key for key, value in found.items() if facts.is_unknown(value)] == []
