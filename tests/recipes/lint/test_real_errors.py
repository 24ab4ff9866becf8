"""What the linter refuses does fail: real runs of the smoke recipe on emulated devices, without the check before them.

verl, Ray, Megatron and vLLM are the real ones. Each run ends with the error that upstream has for the mistake.
"""

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import matrix as matrices
from checks.triage.diagnosis import diagnose
from checks.triage.reading import Log
from checks.triage.scan import scan
from recipes import metrics, prepare, train
from recipes.compose import INSTALLED, compose
from recipes.lint import lint
from recipes.lint.facts import ACTOR, ROLLOUT

MEGATRON = f"{ACTOR}.megatron"
TIME_LIMIT = 600  # seconds a run; a quiet machine needs half a minute

pytestmark = [pytest.mark.slow, pytest.mark.training]


@dataclass(frozen=True)
class Case:
    """A mistake: settings, the one rule that finds it and parts of what it says, lines of its log, its row."""

    settings: tuple[str, ...]
    rule: str
    said: tuple[str, ...]
    errors: tuple[str, ...]
    problem: str


THREE_DEVICES = ("trainer.n_gpus_per_node=3", "data.train_batch_size=6", f"{ACTOR}.ppo_mini_batch_size=6")
CASES = {
    "batch": Case(
        (f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=5"),
        "sizes.micro-batch",
        ("8 × n 8 = 64", "dp 1 × micro-batch 5 = 5", "a rest of 4"),
        ("AssertionError: real_train_batch_size (64) must be divisible by minimal possible batch size (5)",),
        "S7",
    ),
    "layers": Case(
        (*THREE_DEVICES, f"{MEGATRON}.pipeline_model_parallel_size=3"),
        "sizes.layers",
        ("4 layers over 3 stages of pp 3",),
        ("AssertionError: num_layers should be divisible by pipeline_model_parallel_size",),
        "E4",
    ),
    "experts": Case(
        (*THREE_DEVICES, f"{MEGATRON}.pipeline_model_parallel_size=1", f"{MEGATRON}.expert_model_parallel_size=3"),
        "sizes.experts",
        ("expected a divisor of the 8 experts, found 3",),
        ("    assert self.config.num_moe_experts % self.expert_parallel_size == 0",  # it has no words of its own
         "AssertionError:  when instantiating MoELayer"),
        "E4",
    ),
    "key": Case(
        (f"+{ACTOR}.ppo_minibatch_size=8",),
        "keys",
        (f"{ACTOR}.ppo_minibatch_size: expected a key of verl", f"nearest keys: {ACTOR}.ppo_mini_batch_size"),
        ("TypeError: McoreActorConfig.__init__() got an unexpected keyword argument 'ppo_minibatch_size'",),
        "E1",
    ),
    "tokens": Case(
        (f"{MEGATRON}.pipeline_model_parallel_size=1", f"{MEGATRON}.context_parallel_size=2",
         f"{ACTOR}.ppo_max_token_len_per_gpu=20", f"{ACTOR}.use_kl_loss=false", f"{ROLLOUT}.enforce_eager=true"),
        "lengths.budget",
        ("20 × cp 2 = 40", "prompt + response = 48"),
        ("AssertionError: max_token_len must be greater than the sequence length. Got max_token_len=40 and "
         "max_seq_len=48",),
        "E21",
    ),
}  # fmt: skip


def test_the_recipe_as_it_is_has_no_finding():
    assert lint("smoke").findings == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_fails_as_predicted(case, tmp_path):
    predicted(case)
    fails(case, tmp_path / "run")


def predicted(case: Case) -> None:
    """The linter refuses the recipe for one reason only and says it with the numbers."""
    failing = [finding for finding in lint("smoke", settings=case.settings).findings if finding.level == "fail"]
    assert {finding.rule for finding in failing} == {case.rule}
    assert all(part in finding.message for finding in failing for part in case.said)


def fails(case: Case, folder: Path) -> None:
    """A real run of the same recipe ends by itself, with upstream's error in its log."""
    recipe = compose("smoke", case.settings)
    site = prepare.site(recipe)
    prepare.everything(recipe, site)
    limit = threading.Timer(TIME_LIMIT, os.kill, (os.getpid(), signal.SIGINT))  # an orderly stop: the status is 130
    limit.start()
    try:
        status = train.run_unchecked(recipe, matrices.load(INSTALLED), site, folder)
    finally:
        limit.cancel()
    log = [metrics.plain(line) for line in (folder / "train.log").read_text(errors="replace").splitlines()]
    assert status == 1
    assert not (folder / "metrics.jsonl").read_text(), "no step is complete"
    for error in case.errors:
        assert error in log, "\n".join(log[-100:])
    told = diagnose([scan(Log(str(folder / "train.log")))])
    assert (told.findings[0].problem.id, told.findings[0].role) == (case.problem, "cause")
