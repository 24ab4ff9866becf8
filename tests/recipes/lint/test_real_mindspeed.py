"""The rules on MindSpeed's switches against the validators of the real MindSpeed at the performance matrix's commit."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from emulator import site
from recipes.compose import HOME
from recipes.lint import conflicts, read
from recipes.lint.facts import OVERRIDE, SIZES, Facts
from recipes.lint.models import KNOWN

UPSTREAM = Path(os.environ.get("UPSTREAM_ROOT", ""), "performance")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (UPSTREAM / "MindSpeed" / "mindspeed").is_dir(),
        reason="UPSTREAM_ROOT names no folder with performance/MindSpeed (35da6ac)",
    ),
]

# Layers divide by every pp, so that nobody but MindSpeed refuses a layout.
MODEL = replace(KNOWN["qwen3-235b-a22b"], layers=96)
LAYOUTS = (
    {"tp": 4, "pp": 8, "cp": 4, "ep": 16, "etp": 1},
    {"tp": 4, "pp": 2, "cp": 1, "ep": 4, "etp": 1},
    {"tp": 4, "pp": 1, "cp": 1, "ep": 2, "etp": 1},
    {"tp": 2, "pp": 2, "cp": 6, "ep": 4, "etp": 2},
    {"tp": 1, "pp": 2, "cp": 1, "ep": 1, "etp": 1},
)
FIXED = {"use_flash_attn": True, "moe_grouped_gemm": True}
VALUES = {  # of switches that are not only on or off
    "context_parallel_algo": ("megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo", "adaptive_cp_algo",
                              "hybrid_adaptive_cp_algo"),
    "position_embedding_type": ("rope", "alibi", "learned_absolute"),
    "cp_window_size": (1, 2, 3, 4),
    "ulysses_degree_in_cp": (1, 2, 3, 4),
    "context_parallel_kv_cache_policy": ("full", "half"),
    "context_parallel_cache_interval": (0, 1, 96),
    "sparse_mode": (0, 1, 2),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "alltoall_seq"),
    "moe_zero_memory": ("disable", "level0", "level1"),
    "schedules_method": ("dualpipev",),
    "recompute_method": ("uniform", "block"),
    "recompute_num_layers": (1,),
    "tp_x": (1, 2, 4),
    "tp_y": (1, 2, 4),
    "param_and_grad_buffer_pad": (-1, 1, 512),
    "alibi_fusion_attn_type": (0, 1, 2),
    "seq_length": (4096,),
    "swap_attention": (True,),
    "moe_expert_capacity_factor": (1.0,),
    "num_layer_list": ("24,24,24,24",),
    "pipeline_num_transformer_layers": ("[[48],[48]]",),
    "attention_mask_type": ("general", "causal"),
    "overlap_grad_reduce": (True, False),
    "untie_embeddings_and_output_weights": (True,),
    "use_legacy_models": (True, False),
    "num_experts": (128, 1),
    "noop_layers": ("1,2",),
    "fsdp2_config_path": ("file.yaml",),
    "moe_zero_memory_num_layers": (1,),
    "moe_grouped_gemm": (False,),
    "use_flash_attn": (False,),
    "bf16": (False,),
}  # fmt: skip


def switches() -> list[str]:
    """Everything that the three tables and the demands' conditions read."""
    pairs = [*conflicts.INCOMPATIBLE, *conflicts.NEEDS]
    named = {name for first, second, _ in pairs for name in (first, second)}
    return sorted(named | {demand.subject for demand in conflicts.DEMANDS} | VALUES.keys())


def overrides() -> list[dict]:
    """Every row alone, with its partner, and mixtures."""
    chance = random.Random(0)
    value = {name: list(VALUES.get(name, (True,))) for name in switches()}
    found = [{name: one} for name in value for one in value[name]]
    for first, second, _ in (*conflicts.INCOMPATIBLE, *conflicts.NEEDS):
        found.append({first: value[first][0], second: value[second][0]})
    for _ in range(150):
        names = chance.sample(sorted(value), chance.choice([2, 2, 3]))
        found.append({name: chance.choice(value[name]) for name in names})
    return found


def real(cases: list[dict]) -> list[str | None]:
    """The answers of real_mindspeed.py."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("real_mindspeed.py")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=900,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join([str(site.ensure()), str(UPSTREAM / "MindSpeed"), str(HOME)]),
            "OMP_NUM_THREADS": "1",
            "HOME": "/tmp",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def judged(facts: Facts, case: dict) -> list[str]:
    """What the linter says to a case."""
    values = {SIZES[name]: size for name, size in case["sizes"].items()}
    override = {**case["override"]}
    values |= {OVERRIDE: override} | {f"{OVERRIDE}.{key}": value for key, value in override.items()}
    kept = {key: value for key, value in facts.values.items() if not key.startswith(OVERRIDE)}
    found = conflicts.mindspeed(replace(facts, values=kept | values, model=MODEL))
    # what fails later than in the validators is known from running it
    return [fault.message for fault in found if "seen on CPU" not in fault.message]


def test_switches_are_judged_as_mindspeed_does():
    cases = [
        {"sizes": sizes, "override": FIXED | {"context_parallel_size": sizes["cp"]} | override, "model": asdict(MODEL)}
        for sizes in LAYOUTS
        for override in overrides()
    ]
    facts = read("qwen3-235b-30k", "performance")[0]
    differing, told = [], Counter()
    for case, verdict in zip(cases, real(cases), strict=True):
        who = verdict.partition(":")[0] if verdict else "fits"
        told[who] += 1
        found = judged(facts, case)
        if who != "others" and bool(found) != (who == "mindspeed"):
            differing.append((case["override"], case["sizes"], verdict, found))
    assert not differing, f"{len(differing)} of {len(cases)} differ: {differing[:3]}"
    assert told["mindspeed"] > 300 and told["fits"] > 300, told
