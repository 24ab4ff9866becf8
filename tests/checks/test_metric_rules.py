"""What triage reads from the steps of a run: each rule speaks where it should and is silent on a sound run."""

import math

import pytest

from checks import problems
from checks.triage import metric_rules
from checks.triage.diagnosis import diagnose
from checks.triage.metric_rules import RULES
from checks.triage.reading import Log
from checks.triage.scan import scan

STALLS = {"stall", "slow-loading", "stalled-compiling"}  # told from times, not from steps
SOUND = {
    "critic/score/mean": [0.10, 0.12, 0.15, 0.2, 0.22, 0.25, 0.3, 0.31, 0.33, 0.35, 0.36, 0.38],
    "critic/score/max": [1.0] * 12,
    "critic/score/min": [0.0] * 12,
    "critic/advantages/max": [2.1] * 12,
    "critic/advantages/min": [-1.7] * 12,
    "actor/grad_norm": [0.5, 0.7, 0.6, 0.4, 0.9, 0.5, 0.6, 0.5, 0.7, 0.6, 0.5, 0.6],
    "training/rollout_probs_diff_mean": [0.003] * 12,
    "response_length/clip_ratio": [0.02] * 12,
    "timing_s/generation_timing/max": [300.0] * 12,
    "timing_s/generation_timing/min": [250.0] * 12,
    "timing_s/step": [600.0] * 12,
    "perf/max_memory_reserved_gb": [50.0, 53.0, 54.0, *[54.5] * 9],
    "perf/cpu_memory_used_gb": [200.0, 210.0, 215.0, 214.0, 216.0, 215.0, 217.0, 215.0, 216.0, 217.0, 215.0, 216.0],
    "val-core/math/reward/mean@1": [0.1] * 12,
}
ZERO = {"critic/advantages/max": [0.0] * 12, "critic/advantages/min": [0.0] * 12}
RISING = [50 + 0.5 * step for step in range(12)]

# Rule → what differs from a sound run, and a difference that is not enough.
CASES = {
    "not-finite": ({"actor/grad_norm": [0.5] * 11 + [math.nan]}, {"actor/grad_norm": [0.5] * 11 + [3.0]}),
    "equal-answers": (
        {**ZERO, "critic/score/max": [0.41] * 12, "critic/score/min": [0.03] * 12},
        {**ZERO},  # scores of 0 and 1: too easy or too hard
    ),
    "no-reward": ({"critic/score/mean": [0.001] * 12}, {"critic/score/mean": [0.04] * 12}),
    "reward-collapse": (
        {"critic/score/mean": [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.3, 0.2, 0.1, 0.03, 0.02, 0.01]},
        {"critic/score/mean": [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2]},
    ),
    "no-advantage": (ZERO, {**ZERO, "critic/advantages/max": [0.0] * 11 + [0.5]}),
    "exploding-gradient": (
        {"actor/grad_norm": [0.5] * 9 + [80.0, 0.5, 0.5]},
        {"actor/grad_norm": [0.5] * 9 + [8.0, 0.5, 0.5]},
    ),
    "vanishing-gradient": (
        {"actor/grad_norm": [0.5] * 9 + [1e-9, 0.0, 1e-8]},
        {"actor/grad_norm": [0.5] * 9 + [1e-9, 0.0, 1e-3]},
    ),
    "probability-gap": (
        {"training/rollout_probs_diff_mean": [0.003 + 0.002 * step for step in range(12)]},
        {"training/rollout_probs_diff_mean": [0.02] * 12},
    ),
    "clipped-answers": (
        {"response_length/clip_ratio": [0.1] * 9 + [0.6, 0.7, 0.8]},
        {"response_length/clip_ratio": [0.1] * 9 + [0.6, 0.4, 0.8]},
    ),
    "long-tail": (
        {"timing_s/generation_timing/max": [500.0] * 12, "timing_s/generation_timing/min": [100.0] * 12},
        {"timing_s/generation_timing/max": [50.0] * 12, "timing_s/generation_timing/min": [10.0] * 12},
    ),
    "memory-growth": (
        {"perf/max_memory_reserved_gb": RISING},
        {"perf/max_memory_reserved_gb": [*RISING[:-1], RISING[-2]]},
    ),
    "host-memory-growth": (
        {"perf/cpu_memory_used_gb": [200 + 5 * step for step in range(12)]},
        {"perf/cpu_memory_used_gb": [200 + 1 * step for step in range(12)]},
    ),
}


def steps(**changed):
    columns = {**SOUND, **changed}
    return [{"step": number + 1, **{key: column[number] for key, column in columns.items()}} for number in range(12)]


def test_each_rule_has_a_case_and_a_row_and_each_row_its_rule():
    names = {rule.name for rule in RULES}
    assert names == CASES.keys()
    rows = [name for row in problems.load().values() for name in row.metrics]
    assert set(rows) == names | STALLS and len(set(rows)) == len(rows)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule(rule):
    speaks, silent = CASES[rule.name]
    assert rule.look(steps()) is None, "a sound run"
    assert rule.look(steps(**silent)) is None, "not enough"
    seen = rule.look(steps(**speaks))
    assert seen and any(character.isdigit() for character in seen.en + seen.zh), "with numbers"
    assert (rule.look([]) is None and rule.look(steps(**speaks)[:2]) is None) or rule.name == "not-finite"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_without_its_metrics_is_silent(rule):
    assert rule.look([{"step": number} for number in range(20)]) is None


def printed(step):
    return f"(TaskRunner pid=7) step:{step.pop('step')} - " + " - ".join(
        f"{key}:{value}" for key, value in step.items()
    )


def test_from_a_log_to_the_row(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("\n".join(map(printed, steps(**CASES["equal-answers"][0]))))
    found = diagnose([scan(Log(str(log)))]).findings
    assert [(finding.problem.id, finding.role) for finding in found] == [("F1", "cause"), ("H6", "warning")]
    assert "0.03 and 0.41" in found[0].evidence.en


def test_what_is_not_watched_is_not_kept(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step:1 - actor/lr:0.1 - critic/score/mean:0.5 - actor/kl_loss:nan\n")
    (step,) = scan(Log(str(log))).steps
    assert step.keys() == {"step", "critic/score/mean", "actor/kl_loss"}
    assert metric_rules.is_watched("val-core/math/reward/mean@1")
