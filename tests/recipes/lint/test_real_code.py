"""The linter's verdict and its counts against the real verl 0.6.0 and Megatron-core 0.12.1."""

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from recipes.compose import HOME
from recipes.lint import parameters, read, upstream
from recipes.lint.facts import ACTOR, REF, ROLLOUT, SIZES, Facts
from recipes.lint.models import KNOWN, Model
from recipes.lint.rules import RULES

SEEDS = range(6)
CASES = 100  # a seed
# Rules whose subject the real code of this test decides on; the others have tests of their own.
CHECKED = {
    "sizes.positive",
    "sizes.copies",
    "sizes.expert-copies",
    "sizes.layers",
    "sizes.heads",
    "sizes.virtual-stages",
    "sizes.batch-devices",
    "sizes.batch-copies",
    "sizes.micro-batch",
    "sizes.micro-batch-given",
    "sizes.mini-batch",
    "sizes.mini-batch-whole",
    "sizes.log-prob-micro-batch",
    "sizes.engine-stages",
    "sizes.engine-experts",
    "sizes.temperature",
    "lengths.budget",
}
# Divides by much, so that layouts fail for what they are and not for what the model is.
TINY = Model("a test's model", 12, 96, 12, 12, 8, 120, experts=8, active=2, expert_width=32, width=64)


def real_code(command: str, cases: list) -> list:
    """The answers of real_code.py."""
    script = Path(__file__).with_name("real_code.py")
    done = subprocess.run(
        [sys.executable, script, command],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=HOME,
        timeout=900,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "HOME": "/tmp"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# What a layout that fits is changed in: each value may break something, or nothing.
CHANGES = {
    "trainer.n_gpus_per_node": range(1, 49),
    "data.train_batch_size": (6, 7, 12, 24, 36, 60),
    SIZES["samples"]: (1, 2, 3, 5, 6),
    SIZES["mini"]: (1, 2, 3, 5, 8, 24, 48),
    SIZES["micro"]: (2, 3, 4, 5, 8, None),
    SIZES["tp"]: (1, 2, 3, 4, 5),
    SIZES["pp"]: (1, 2, 3, 4, 5),
    SIZES["cp"]: (1, 2, 3),
    SIZES["ep"]: (1, 2, 4, 8),
    SIZES["etp"]: (1, 2, 3, 4, None),
    SIZES["vpp"]: (2, 3, 4),
    SIZES["first"]: (1, 2, 3, 4, 5),
    SIZES["last"]: (1, 2, 3, 4, 5),
    "trainer.balance_batch": (False,),
    f"{ACTOR}.use_dynamic_bsz": (False,),
    f"{ACTOR}.ppo_max_token_len_per_gpu": (16, 24, 40, 48, 64),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": (None,),
    f"{ROLLOUT}.pipeline_model_parallel_size": (2,),
    f"{ROLLOUT}.expert_parallel_size": (2,),
    f"{ROLLOUT}.temperature": (0,),
}


def layout(chance: random.Random) -> dict:
    """A layout and a batch that fit together, changed in up to three places."""
    tp, pp, cp, dp = (chance.choice(sizes) for sizes in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 1, 2), (1, 2, 3, 4)))
    devices = tp * pp * cp * dp
    splits = [(ep, etp) for ep in (1, 2, 4) for etp in (1, 2, 3, 4, None) if devices % (ep * (etp or tp) * pp) == 0]
    ep, etp = chance.choice(splits)
    prompts = devices * chance.choice([1, 2])
    values = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": devices,
        "data.train_batch_size": prompts,
        SIZES["samples"]: chance.choice([1, 2, 4]),
        SIZES["mini"]: chance.choice([prompts, devices]),
        SIZES["micro"]: 1,
        SIZES["tp"]: tp,
        SIZES["pp"]: pp,
        SIZES["cp"]: cp,
        SIZES["ep"]: ep,
        SIZES["etp"]: etp,
        SIZES["vpp"]: None,
        SIZES["first"]: None,
        SIZES["last"]: None,
        "trainer.balance_batch": chance.random() < 0.5,
        f"{ACTOR}.use_dynamic_bsz": chance.random() < 0.5,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 1024,
        f"{REF}.log_prob_use_dynamic_bsz": False,
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 1024,
        f"{ROLLOUT}.val_kwargs.do_sample": chance.random() < 0.5,
    }
    for key in chance.sample(sorted(CHANGES), chance.choice([0, 1, 1, 1, 2, 2, 3])):
        values[key] = chance.choice(CHANGES[key])
    sizes = {name: values[SIZES[name]] for name in ("tp", "pp", "cp", "ep", "etp", "vpp", "first", "last")}
    return {"devices": values["trainer.n_gpus_per_node"], "model": asdict(TINY), **sizes, "values": values}


def refused(facts: Facts, case: dict) -> set[str]:
    """The rules that reject a case, of those whose subject the real code of this test decides on."""
    for key, value in case["values"].items():
        facts = facts.with_value(key, value)
    return {rule.id for rule in RULES if rule.id in CHECKED and next(rule.findings(facts), None)}


@pytest.mark.slow
def test_layouts_are_judged_as_the_real_code_does():
    cases = [layout(chance) for seed in SEEDS for chance in [random.Random(seed)] for _ in range(CASES)]
    verdicts = real_code("layouts", cases)
    smoke = replace(read("smoke")[0], model=TINY)
    differing = []
    for number, (case, verdict) in enumerate(zip(cases, verdicts, strict=True)):
        rules = refused(smoke, case)
        if bool(rules) != (verdict is not None):
            differing.append((divmod(number, CASES), verdict, rules, case))
    assert not differing, f"{len(differing)} differ, the first: {differing[0]}"
    told = Counter(verdict.partition(":")[0] if verdict else "fits" for verdict in verdicts)
    assert len(cases) >= 500 and min(told[name] for name in ("fits", "config", "groups", "data")) >= 20, told


LAYOUTS = [  # model, devices, tp, pp, cp, ep, etp, first, last
    ("qwen3-235b-a22b", 384, 4, 8, 4, 16, 1, 11, 11),
    ("qwen3-235b-a22b", 384, 4, 12, 8, 8, 4, 7, 7),
    ("qwen3-235b-a22b", 128, 4, 8, 1, 4, 4, 11, 11),
    ("qwen3-30b-a3b", 16, 4, 2, 2, 8, 1, None, None),
    ("qwen3-30b-a3b", 32, 2, 4, 1, 4, 2, None, None),
    ("qwen3-moe-no-qk-norm", 128, 4, 8, 4, 16, 1, 11, 11),
]


@pytest.mark.slow
def test_parameters_are_megatrons_own_to_the_last_one():
    cases, expected = [], []
    for name, devices, tp, pp, cp, ep, etp, first, last in LAYOUTS:
        model = KNOWN[name]
        counts = parameters.stages(model.layers, pp, first, last)
        for stage in sorted({0, 1, pp - 1}):
            sizes = {"devices": devices, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp}
            cases.append({**sizes, "first": first, "last": last, "stage": stage, "model": asdict(model)})
            share = parameters.of_rank(model, tp, ep, etp, counts[stage], stage == 0, stage == pp - 1)
            expected.append([share.dense, share.experts])
    assert real_code("parameters", cases) == expected


@pytest.mark.slow
def test_gradients_of_experts_are_reduced_over_all_their_copies_where_the_linter_says_so():
    cases = [
        {"devices": devices, "tp": tp, "pp": 1, "cp": cp, "ep": ep, "etp": etp, "first": None, "last": None}
        for devices in (4, 8)
        for tp in (1, 2, 4)
        for cp in (1, 2)
        for ep in (1, 2)
        for etp in (1, 2, 4)
        if devices % (tp * cp) == 0 and devices % (ep * etp) == 0 and etp <= tp
    ]
    smoke, drifting = replace(read("smoke")[0], model=TINY), []
    for case in cases:
        facts = smoke.with_value("trainer.n_gpus_per_node", case["devices"])
        for name in ("tp", "pp", "cp", "ep", "etp"):
            facts = facts.with_value(name, case[name])
        drifting.append(bool(list(upstream.drifting_experts(facts))))
    answers = real_code("gradients", [{**case, "model": asdict(TINY)} for case in cases])
    assert [reduced != copies for reduced, copies in answers] == drifting
    assert any(drifting) and not all(drifting)


def test_totals_are_the_published_ones():
    assert parameters.total(KNOWN["qwen3-235b-a22b"]) == 235_093_634_560
    assert parameters.total(KNOWN["qwen3-30b-a3b"]) == 30_532_122_624
