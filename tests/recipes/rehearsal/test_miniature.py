"""The miniature keeps what divides, what is above one, and every switch; what cannot shrink is refused."""

import pytest

from errors import UserError
from recipes.compose import verl_defaults
from recipes.lint import lint_facts, read
from recipes.lint.facts import SIZES, gather
from recipes.lint.rules import SIZES as SIZE_RULES
from recipes.rehearsal import miniature

SHIPPED = (
    "qwen3-235b-30k",
    "qwen3-235b-30k-baseline",
    "qwen3-235b-4k",
    "qwen3-30b-a3b-30k",
    "qwen3-moe-no-qk-norm-30k",
)
SWITCHES = (
    "enable",
    "use_",
    "param_offload",
    "optimizer_offload",
    "enforce_eager",
    "recompute",
    "fusion",
    "free_cache",
)


def shrunk(name, matrix, *settings):
    """Facts of the recipe and of its miniature, and the changes."""
    facts, recipe, _ = read(name, matrix, 0, settings)
    small, changes = miniature.shrink(recipe.config, facts, "the test's")
    return facts, gather(small, matrix, verl_defaults(matrix)), changes


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("matrix", ["performance", "commercial"])
def test_sizes_that_fit_in_production_fit_in_miniature(name, matrix):
    before, after, _ = shrunk(name, matrix)
    for facts in (before, after):
        assert [one.id for one in lint_facts(facts, SIZE_RULES) if one.level == "fail"] == []
    for size in ("tp", "pp", "cp", "ep", "etp", "rollout_tp"):
        wide = (before.size(size) or 1) > 1
        assert (after.size(size) or 1) == (2 if wide else 1), size
    assert after.layout.devices <= miniature.RANKS
    assert before.width <= before.size("actor_rollout_ref.actor.ppo_max_token_len_per_gpu") * before.layout.cp
    assert after.width <= after.size("actor_rollout_ref.actor.ppo_max_token_len_per_gpu") * after.layout.cp


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("matrix", ["performance", "commercial"])
def test_no_switch_changes(name, matrix):
    before, after, _ = shrunk(name, matrix)
    for key, value in before.values.items():
        if isinstance(value, bool) and key.rsplit(".", 1)[-1].startswith(SWITCHES):
            assert after.get(key) == value, key
    for variable in ("TASK_QUEUE_ENABLE", "VLLM_ASCEND_ENABLE_NZ", "HCCL_EXEC_TIMEOUT"):
        assert before.env.get(variable) == after.env.get(variable)


def test_uneven_stages_stay_uneven():
    _, after, _ = shrunk("qwen3-235b-30k", "performance")
    assert after.size("first") == 1 and after.model.layers == 3
    _, even, _ = shrunk("qwen3-30b-a3b-30k", "performance")
    assert even.size("first") is None and even.model.layers == 4


def test_a_model_without_norms_keeps_none():
    _, after, _ = shrunk("qwen3-moe-no-qk-norm-30k", "performance")
    assert after.get("launch.model")["qk_norm"] is False and not after.model.qk_norm


def test_the_toys_widths_are_not_confused_by_the_reload():
    for name in SHIPPED:
        _, after, _ = shrunk(name, "performance")
        assert "upstream.guessed-layout" not in {one.rule for one in lint_facts(after)}


def test_each_change_says_why_and_really_is_one():
    _, _, changes = shrunk("qwen3-235b-30k", "performance")
    assert all(change.why and change.before != change.after for change in changes)
    assert len({change.key for change in changes}) == len(changes)


def test_the_users_own_device_settings_stay():
    _, after, _ = shrunk("qwen3-235b-30k", "performance", "+launch.env.NPU_EMULATOR_POISON=fresh")
    assert after.env["NPU_EMULATOR_POISON"] == "fresh"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["actor_rollout_ref.model.path=/nowhere/unknown-model"], "expected a Qwen3-MoE whose sizes are known"),
        ([f"{SIZES['nodes']}=1", f"{SIZES['per_node']}=1"], "expected parallel sizes that fit"),
    ],
)
def test_what_cannot_shrink_is_refused(settings, words):
    with pytest.raises(UserError, match=words):
        shrunk("qwen3-235b-30k", "performance", *settings)
