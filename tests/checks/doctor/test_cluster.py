"""Machines against each other: recorded ones, and the nodes of a real Ray cluster on this machine."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from checks.doctor import cluster
from checks.doctor.check import Case
from checks.doctor.document import Facts
from checks.doctor.report import sentence
from errors import UserError
from tests.checks.doctor.machines import GONE, case

ROOT = Path(__file__).resolve().parents[3]
NODE = {"address": "10.10.0.11", "npus": 8.0, "skew": 0.0}
OTHER = {f"npu/ports/{number}/address": f"10.20.{number}.12" for number in range(8)}
TOKEN = {"path": "/data/checkpoints/.doctor-1", "exists": True}
FIT = {**OTHER, "node": NODE, f"paths/{cluster.TOKEN}": TOKEN, "npu/ports/0/tls": False}

# Check, what one of three machines has otherwise, a part of what is found.
BROKEN = [
    ("driver", {"npu/driver/release": "25.0.0"}, "node-c: 25.0.0"),
    ("firmware", {"npu/firmware/package_version": "25.0.0"}, "node-c: 25.0.0"),
    ("cann", {"cann/sourced/version": "8.2.RC1"}, "node-c: 8.2.RC1"),
    ("nnal", {"cann/nnal/version": "8.2.RC1"}, "node-c: 8.2.RC1"),
    ("python", {"python/version": "3.11.9"}, "node-c: 3.11.9"),
    ("machine", {"system/machine": "x86_64"}, "node-c: x86_64"),
    ("kernel", {"system/kernel": "5.10.0-100"}, "node-c: 5.10.0-100"),
    ("packages", {"packages/ray": "2.45.0"}, "ray 2.46.0, found node-c: 2.45.0"),
    ("packages", {"packages/tensordict": GONE}, "tensordict 0.10.0, found node-c: none"),
    ("commits", {"stack/sources/verl/commit": "f" * 40}, "node-c: fff"),
    ("environment", {"environment/HCCL_BUFFSIZE": "512"}, "HCCL_BUFFSIZE none, found node-c: 512"),
    ("chips", {"npu/smi/chips/7": GONE}, "node-c: 7 × 910B2"),
    ("tls", {f"npu/ports/{number}/tls": True for number in range(8)}, "TLS off, found node-c: on"),
    ("addresses", {"npu/ports/1/address": "10.20.1.11"}, "10.20.1.11: node-a, node-c"),
    ("clocks", {"node/skew": 3600.0}, "node-c: 3600 s"),
    ("npus", {"node/npus": None}, "node-c: 8, found 0"),
    ("checkpoint", {f"paths/{cluster.TOKEN}/exists": False}, "found node-c"),
]


def three(change: dict, nodes: int = 3) -> dict[str, Case]:
    values = {"trainer.nnodes": nodes}
    first = {**FIT, **{f"npu/ports/{number}/address": f"10.20.{number}.11" for number in range(8)}}
    second = {**FIT, **{f"npu/ports/{number}/address": f"10.20.{number}.13" for number in range(8)}}
    changes = {"node-a": first, "node-b": second, "node-c": {**FIT, **change}}
    return {name: case("fit-a2-host", one, values=values) for name, one in changes.items()}


def said(cases: dict[str, Case], name: str):
    return {one.check.id: one for one in cluster.compare(cases)}[f"cluster.{name}"]


def test_every_check_has_a_case():
    assert {one.check.id for one in cluster.compare(three({}))} == {f"cluster.{name}" for name, _, _ in BROKEN} | {
        "cluster.answered",
        "cluster.size",
    }


def test_machines_that_are_the_same():
    assert {one.status for one in cluster.compare(three({}))} == {"pass"}


@pytest.mark.parametrize(("name", "change", "found"), BROKEN)
def test_a_machine_that_differs(name, change, found):
    result = said(three(change), name)
    assert result.status == result.check.level
    assert [found in sentence(fault, "en") for fault in result.faults] == [True], result.faults


def test_too_few_machines_and_a_silent_one():
    cases = three({}, nodes=16)
    assert "expected 16, found 3" in sentence(said(cases, "size").faults[0], "en")
    silent = Facts({"unknown": "no answer within 60 s"})
    cases["node-c"] = Case(silent, cases["node-a"].matrix, cases["node-a"].settings)
    assert "node-c: no answer within 60 s" in sentence(said(cases, "answered").faults[0], "en")
    assert said(cases, "driver").status == "pass"


def test_nodes_that_share_a_host_have_names_of_their_own():
    node = {"NodeManagerHostname": "a", "NodeManagerAddress": "10.0.0.1"}
    other = {"NodeManagerHostname": "a", "NodeManagerAddress": "10.0.0.2"}
    nodes = [{**node, "NodeID": "1f"}, {**node, "NodeID": "2f"}, {**other, "NodeID": "3f"}]
    assert cluster.names(nodes) == ["a-10.0.0.1-1f", "a-10.0.0.1-2f", "a-10.0.0.2"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto", "127.0.0.1:99999", None])
def test_without_a_cluster_it_says_so(address, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(UserError, match="--cluster: expected a Ray cluster that runs, found none at"):
        cluster.collect({}, address)


TWO_NODES = """
import json, os, sys
from ray.cluster_utils import Cluster
from checks.doctor import cluster
head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": sys.argv[1], "object_store_memory": 80 << 20}
ray = Cluster(initialize_head=True, head_node_args=head)
try:
    ray.add_node(num_cpus=1, resources={"NPU": 2}, object_store_memory=80 << 20)
    found = cluster.collect({"trainer.default_local_dir": sys.argv[2], "model": "/nonexistent"}, ray.address)
finally:
    ray.shutdown()
print("FOUND " + json.dumps({name: facts.value for name, facts in found.items()}))
"""


def two_nodes(temporary: Path, shared: Path) -> tuple[dict, str]:
    (temporary / "ray").mkdir()
    environment = {**os.environ, "RAY_TMPDIR": str(temporary), "RAY_USAGE_STATS_ENABLED": "0", "HF_TOKEN": "hf_abcdef"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", TWO_NODES, str(temporary / "ray"), str(shared)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("FOUND ")[2]), done.stdout


@pytest.mark.slow
def test_the_nodes_of_a_real_cluster(tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as temporary:  # short: sockets lie in it
        found, printed = two_nodes(Path(temporary), tmp_path)
    assert len(found) == 2 and "hf_abcdef" not in printed
    assert sorted(one["node"]["npus"] or 0 for one in found.values()) == [0, 2]
    for one in found.values():
        assert one["paths"][cluster.TOKEN]["exists"] and not one["paths"]["model"]["exists"]
        assert one["node"]["skew"] == 0 and one["packages"]["ray"]
        assert [daemon["name"] for daemon in one["ray"]["daemons"]].count("raylet") >= 2
    assert not list(tmp_path.iterdir())
