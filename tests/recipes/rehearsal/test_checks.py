"""Each check on observations made by hand: passes on a right run, fails on one fault each, with its problem row."""

from dataclasses import replace

import pytest

from recipes.rehearsal import checks
from recipes.rehearsal.checks import Rehearsed
from recipes.rehearsal.observations import Observations

MODEL = {"model.embed": "aa", "model.layers.0.mlp.experts.0.up": "bb"}
TRACE = {
    "vllm": {"num_cudagraph_captured": 12},
    "nz_partial_writes": 0,
    "races": [],
    "patches": {"megatron": ["mindspeed"]},
    "operators": {"npu_swiglu_backward": {"forward": 0, "backward": 4}},
}

RACE = {
    "kind": "read after write",
    "count": 2,
    "first": {"operator": "aten::mul", "stream": [0, 0], "access": "write"},
    "second": {"operator": "aten::sum", "stream": [0, 3], "access": "read"},
}


def rollout(step, engine, state, answers):
    return {
        "step": step,
        "rank": str(engine),
        "engine": engine,
        "state": state,
        "prompts": ["p", "p"],
        "answers": answers,
    }


def observed():
    """A run without a fault: two engines, two steps, one prompt with four answers a step."""
    rollouts = [
        rollout(step, engine, f"{step}{engine}", [f"{step}{engine}a", f"{step}{engine}b"])
        for step in (1, 2)
        for engine in (0, 1)
    ]
    steps = [{"step": step, "actor/grad_norm": 0.5 + step, "timing_s/step": step} for step in (1, 2)]
    return Observations(steps, rollouts, {"0": MODEL, "1": MODEL}, [TRACE], checkpoint={"w": "1", "exp_avg": "2"})


def rehearsed():
    right = observed()
    gap = {"mean": 1e-3, "max": 1e-2, "tokens": 64}
    pairs = {step: {"trainer-hf": gap, "rollout-trainer": gap} for step in (1, 2)}
    later = replace(right, steps=[dict(right.steps[1], **{"timing_s/step": 9})])
    return Rehearsed(right, later, MODEL, pairs, {}, samples=4, graphs=True, fused_experts=True)


def first(**changes):
    seen = rehearsed()
    return replace(seen, first=replace(seen.first, **changes))


SAME_NOISE = [dict(entry, state="s") for entry in observed().rollouts]
COPIES = [dict(entry, answers=["a", "b"]) for entry in observed().rollouts]
NOT_A_NUMBER = [{"step": 1, "training/rollout_probs_diff_max": "nan"}, {"step": 2, "actor/grad_norm": 2.5}]
FAULTS = {
    "copies": (first(rollouts=COPIES), "distinct answers, step 1", "F1"),
    "noise": (first(rollouts=SAME_NOISE), "noise of rollout engines", "F1"),
    "experts": (
        first(sent={"0": {**MODEL, "model.layers.0.mlp.experts.0.up": "xx"}}),
        "weights sent to the rollout",
        "F7",
    ),
    "missing": (first(sent={"0": {"model.embed": "aa"}}), "weights sent to the rollout", "F7"),
    "weights": (first(sent={"0": {**MODEL, "model.embed": "xx"}}), "weights sent to the rollout", ""),
    "nan": (first(steps=NOT_A_NUMBER), "finite numbers", ""),
    "few rows": (replace(first(steps=NOT_A_NUMBER), few_ranks=True), "finite numbers", "F21"),
    "captures": (first(traces=[{**TRACE, "vllm": {"num_graphs_seen": 1}}]), "graph captures", "F4"),
    "nz": (first(traces=[{**TRACE, "nz_partial_writes": 96}]), "NZ storages", "F11"),
    "race": (first(traces=[{**TRACE, "races": [RACE]}]), "order on streams", ""),
    "swiglu": (first(traces=[{**TRACE, "operators": {}}]), "fused SwiGLU in training", "F6"),
    "crash": (replace(rehearsed(), causes={"first": ("TypeError: x", "F9")}), "two steps", "F9"),
    "resume": (replace(rehearsed(), causes={"resumed": ("RuntimeError: y", "F2")}), "save, resume, next step", "F2"),
    "moments": (first(checkpoint={"w": "1", "exp_avg": "3"}), "checkpoint after the resumed step", "F28"),
    "other step": (first(steps=[{"step": 2, "actor/grad_norm": 3.0}]), "save, resume, next step", ""),
    "log-probs": (
        replace(rehearsed(), log_probs={2: {"rollout-trainer": {"mean": 0.14, "max": 0.3, "tokens": 9}}}),
        "log-probs rollout-trainer, step 2",
        "",
    ),
}


def test_a_right_run_passes_every_check():
    assert {result.check: result.status for result in checks.results(rehearsed()) if result.status != "pass"} == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check_with_its_row(fault):
    seen, check, problem = FAULTS[fault]
    failed = {result.check: result.problem for result in checks.results(seen) if result.status == "fail"}
    assert failed.get(check) == problem


def test_ranks_of_one_engine_count_once():
    twice = [*observed().rollouts, *(dict(entry, rank="9") for entry in observed().rollouts)]
    assert [result.status for result in checks.distinct_answers(first(rollouts=twice))] == ["pass", "pass"]


def test_what_was_not_seen_is_skipped_and_never_passed():
    empty = Rehearsed(Observations(), Observations(), causes={"first": ("died", "")})
    assert {result.status for result in checks.results(empty) if result.check != "two steps"} == {"skip"}
