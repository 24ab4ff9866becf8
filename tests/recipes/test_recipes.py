"""The shipped recipes: named and written alike, minimal, whole over both NPU matrices, with sizes that divide."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from errors import UserError
from recipes import catalogue, keys, schema
from recipes.compose import FOLDER, HOME, compose, judge, matrices, names, verl_defaults

NPU = ["commercial", "performance"]
PRODUCTION = [name for name in names() if name != "smoke"]
TUNED = "qwen3-235b-30k"
ACTOR = "actor_rollout_ref.actor"
OVERRIDE = f"{ACTOR}.megatron.override_transformer_config"
LAYERS = {"235b": 94, "moe": 94, "30b": 48}  # by the second part of a recipe's name
BOTH = [(name, matrix) for name in PRODUCTION for matrix in NPU]


def written(file: Path) -> dict:
    """What a file itself says, dotted, without its defaults list."""
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    content.pop("defaults", None)
    return keys.leaves(OmegaConf.create(content))


def inherited(name: str, matrix: str, folder: Path) -> dict:
    """What a recipe composes to when its file says nothing beyond its defaults list."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    bare = folder / f"{name}.yaml"
    own_matrix = {"launch": {"matrix": matrix}} if "matrix" in content.get("launch", {}) else {}
    bare.write_text(yaml.safe_dump({"defaults": content["defaults"], **own_matrix}))
    return keys.leaves(judge(str(bare), matrix=matrix)[0].config)  # bare, it lacks what verl demands


@cache
def resolved(name: str, matrix: str) -> DictConfig:
    config = compose(name, matrix=matrix).config
    OmegaConf.resolve(config)
    return config


def changed(name: str, matrix: str) -> dict:
    """What a recipe composes to beyond verl's own defaults at that matrix."""
    defaults = keys.leaves(verl_defaults(matrix))
    return {k: v for k, v in keys.leaves(compose(name, matrix=matrix).config).items() if defaults.get(k, keys) != v}


def test_the_production_recipes_are_there():
    assert {TUNED, f"{TUNED}-baseline", "qwen3-235b-4k", "qwen3-30b-a3b-30k", "qwen3-moe-no-qk-norm-30k"} <= set(
        names()
    )


@pytest.mark.parametrize("name", names())
def test_a_recipe_is_named_and_introduced_as_the_others_are(name):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    first, second = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("# ") and len(first) <= 120 and second.startswith("# ")
    assert compose(name).config.trainer.experiment_name == name


@pytest.mark.parametrize("name", names())
def test_a_recipe_states_only_what_differs(name, tmp_path):
    own = written(FOLDER / f"{name}.yaml")
    own.pop("launch.matrix", None)  # chooses what is inherited
    known = [inherited(name, matrix, tmp_path) for matrix in matrices(name)]
    repeated = [key for key, value in own.items() if all(key in base and base[key] == value for base in known)]
    assert repeated == []


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*/*.yaml")), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_group_states_only_what_differs(file):
    affected = [file.stem] if file.parent.name == "stack" else NPU
    known = [keys.leaves(verl_defaults(matrix)) for matrix in affected]
    own = written(file)
    assert [key for key, value in own.items() if all(key in base and base[key] == value for base in known)] == []


def test_a_repeated_value_would_be_seen(tmp_path, monkeypatch):
    child = (FOLDER / "qwen3-235b-4k.yaml").read_text().replace("data:\n", "data:\n  max_prompt_length: 2048\n")
    child = child.replace("  max_prompt_length: 8192\n", "")
    assert yaml.safe_load(child)["data"]["max_prompt_length"] == 2048
    monkeypatch.setattr(sys.modules[__name__], "FOLDER", tmp_path)
    (tmp_path / "qwen3-235b-4k.yaml").write_text(child)
    (tmp_path / "bare").mkdir()
    with pytest.raises(AssertionError, match="max_prompt_length"):
        test_a_recipe_states_only_what_differs("qwen3-235b-4k", tmp_path / "bare")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("**/*.yaml")), ids=lambda file: file.stem)
def test_a_line_fits_and_has_no_tab(file):
    assert [line for line in file.read_text(encoding="utf-8").splitlines() if len(line) > 120 or "\t" in line] == []


@pytest.mark.parametrize(("name", "matrix"), BOTH)
def test_a_production_recipe_composes_and_resolves_for_both_npu_matrices(name, matrix):
    config = resolved(name, matrix)
    assert config.launch.matrix == matrix and config.launch.nodes == config.trainer.nnodes
    assert config.trainer.device == "npu" and config.algorithm.adv_estimator == "grpo"
    assert OmegaConf.missing_keys(config) == set()
    assert sorted(matrices(name)) == NPU and compose(name).matrix == "performance"


def test_composing_an_npu_matrix_leaves_the_installed_verls_config_alone():
    before = OmegaConf.to_container(compose("smoke").config)
    compose(TUNED, matrix="commercial")
    assert OmegaConf.to_container(compose("smoke").config) == before


@pytest.mark.parametrize(("name", "matrix"), BOTH)
def test_every_key_of_the_override_is_known_to_megatron_or_mindspeed(name, matrix):
    known = schema.load("megatron", matrix).keys() | schema.load("mindspeed", matrix).keys()
    override = OmegaConf.select(resolved(name, matrix), OVERRIDE)
    own = {"position_embedding_type", "use_distributed_optimizer"}  # of Megatron's training arguments
    assert set(override) - known - own == set()
    for key, value in override.items():
        field = schema.load("mindspeed", matrix).get(key) or schema.load("megatron", matrix).get(key)
        if field and field.type == "bool":
            assert isinstance(value, bool), key
        if field and field.choices:
            assert value in field.choices, key


def test_what_differs_between_the_matrices_is_the_stack_group_alone():
    performance, commercial = (changed(TUNED, matrix) for matrix in ("performance", "commercial"))
    both = performance.keys() & commercial.keys()
    differing = {key for key in both if performance[key] != commercial[key]} | (performance.keys() ^ commercial.keys())
    stack = written(FOLDER / "stack/performance.yaml").keys() | written(FOLDER / "stack/commercial.yaml").keys()
    # what the tuned recipe states and one of the two has as its default
    equal = {key for key in written(FOLDER / f"{TUNED}.yaml") if key in differing}
    assert differing - equal == stack
    assert all((performance | commercial)[key] == written(FOLDER / f"{TUNED}.yaml")[key] for key in equal)


@pytest.mark.parametrize(("name", "matrix"), BOTH)
def test_layouts_divide(name, matrix):
    config = resolved(name, matrix)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    trainer = actor.megatron
    npus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    tp, pp, cp = (trainer[f"{kind}_model_parallel_size"] if kind != "context" else trainer.context_parallel_size
                  for kind in ("tensor", "pipeline", "context"))  # fmt: skip
    ep, etp = trainer.expert_model_parallel_size, trainer.expert_tensor_parallel_size or tp
    copies, rest = divmod(npus, tp * pp * cp)
    samples = config.data.train_batch_size * rollout.n
    engine = rollout.tensor_model_parallel_size * rollout.get("dp_model_parallel_size", 1)
    assert rest == npus % (ep * etp * pp) == npus % engine == 128 % ep == 0
    assert samples % npus == samples % copies == actor.ppo_mini_batch_size * rollout.n % copies == 0
    assert config.data.train_batch_size % actor.ppo_mini_batch_size == 0
    length = config.data.max_prompt_length + config.data.max_response_length
    assert actor.ppo_max_token_len_per_gpu * cp >= length and rollout.max_num_batched_tokens >= length
    assert config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu * cp >= length
    first, last = (
        trainer.override_transformer_config[f"num_layers_in_{end}_pipeline_stage"] for end in ("first", "last")
    )
    layers = LAYERS[name.split("-")[1]]
    assert layers % pp == 0 if first is None else (layers - first - last) % (pp - 2) == 0
    sizes = config.launch.rollout.capture_sizes
    assert sizes == sorted(set(sizes)) and sizes[-1] == rollout.max_num_seqs
    assert len(sizes) <= (1800 - 40) // (layers + 1) // 3  # vllm-ascend 15b2e5c: tensor parallel only, without AIV
    assert name.split("-")[1] == "30b" or engine >= 16  # weights and KV cache of 235B in 64 GB


@pytest.mark.parametrize(("name", "matrix"), BOTH)
def test_settings_that_exclude_each_other_do_not_meet(name, matrix):
    config = resolved(name, matrix)
    env, rollout = config.launch.env, config.actor_rollout_ref.rollout
    assert (env.TASK_QUEUE_ENABLE, rollout.enforce_eager) in [(1, False), (2, True)]
    assert config.actor_rollout_ref.nccl_timeout > env.HCCL_EXEC_TIMEOUT >= 3600
    assert "PYTORCH_NPU_ALLOC_CONF" not in env and "ASCEND_LAUNCH_BLOCKING" not in env
    override = OmegaConf.select(config, OVERRIDE)
    assert override.context_parallel_size == config.actor_rollout_ref.actor.megatron.context_parallel_size
    assert ("use_fused_rotary_pos_emb" in override) == (override.get("position_embedding_type") == "rope")
    assert "pipeline_model_parallel_size" not in override  # MindSpeed 1cdd0ab then wants megatron.training
    ref = keys.leaves(compose(name, matrix=matrix).config)["actor_rollout_ref.ref.megatron.override_transformer_config"]
    assert ref.startswith("${oc.select:")  # inherited whole, not replaced by a single key


def test_the_new_models_recipe_changes_four_keys():
    assert {line.split()[0].rstrip(":") for line in catalogue.difference(TUNED, "qwen3-moe-no-qk-norm-30k")} == {
        "launch.assets",
        "trainer.experiment_name",
        "actor_rollout_ref.model.external_lib",
        "+",
    }
    assert OmegaConf.select(compose("qwen3-moe-no-qk-norm-30k").config, OVERRIDE).qk_layernorm is False


def test_switching_off_the_operators_leaves_nothing_of_them():
    fused = written(FOLDER / "operators/fused.yaml")
    assert fused.keys() <= keys.leaves(compose(TUNED).config).keys()
    for config in (compose(TUNED, ["operators=plain"]).config, compose(f"{TUNED}-baseline").config):
        assert not fused.keys() & keys.leaves(config).keys()


@pytest.mark.parametrize(
    ("recipe", "settings", "matrix", "parts"),
    [
        (TUNED, ["stack=commercal"], None, ["commercial, performance", "'commercal'"]),
        (TUNED, [], "cpu", ["commercial, performance", "'cpu'"]),
        (TUNED, ["operators=fast"], None, ["operators", "fused, plain", "'fast'"]),
        ("smoke", [], "performance", ["expected the matrix cpu", "found performance"]),
        (
            TUNED,
            ["actor_rollout_ref.rollout.dp_model_parallel_size=2"],
            None,
            ["dp_model_parallel_size", "expected a key"],
        ),
        (TUNED, ["actor_rollout_ref.rollout.n=x"], "commercial", ["expected a whole number", "'x'"]),
    ],
)
def test_a_choice_that_is_not_there_is_named(recipe, settings, matrix, parts):
    with pytest.raises(UserError) as caught:
        compose(recipe, settings, matrix)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for part in parts:
        assert part in message


def test_stack_on_the_command_line_and_the_matrix_option_give_the_same():
    assert compose(TUNED, ["stack=commercial"]).config == compose(TUNED, matrix="commercial").config


def test_a_recipe_of_the_users_own_inherits_both_matrices(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"defaults: [{TUNED}, _self_]\ntrainer:\n  nnodes: 16\n")
    assert sorted(matrices(str(mine))) == NPU
    assert compose(str(mine), matrix="commercial").config.launch.matrix == "commercial"


def test_the_list_shows_matrices_and_nodes(capsys):
    assert catalogue.show_all(as_json=True) == 0
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == set(names())
    assert rows["qwen3-235b-4k"]["nodes"] == 16 and sorted(rows["qwen3-235b-4k"]["matrices"]) == NPU
    assert rows["smoke"]["matrices"] == ["cpu"] and rows["smoke"]["hardware"] == "emulated"


def test_the_difference_to_the_baseline_is_what_was_tuned(capsys):
    assert catalogue.show_difference(f"{TUNED}-baseline", TUNED, "commercial") == 0
    shown = capsys.readouterr().out
    for line in (
        f"  {ACTOR}.megatron.pipeline_model_parallel_size: 12 -> 8",
        f"  {ACTOR}.megatron.expert_tensor_parallel_size: null -> 1",
        f"+ {OVERRIDE}.moe_grouped_gemm=true",
        "  actor_rollout_ref.rollout.enforce_eager: true -> false",
        "  launch.env.TASK_QUEUE_ENABLE: 2 -> 1",
    ):
        assert line in shown
    assert len(shown.splitlines()) == 15


def test_show_changed_leaves_out_verls_defaults(capsys):
    assert catalogue.show(TUNED, "commercial", changed=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("launch.") and any("dp_model_parallel_size" in line for line in lines)
    assert len(lines) < 80 and not any(line.startswith("critic.") for line in lines)
    assert catalogue.show(TUNED) == 0
    assert OmegaConf.create(capsys.readouterr().out) == compose(TUNED).config


@pytest.mark.slow
def test_verls_own_entry_composes_a_recipe_without_the_launcher():
    command = ["-m", "verl.trainer.main_ppo", "--config-dir", "recipes", "--config-name", TUNED, "--cfg", "job"]
    environment = {**os.environ, "ASCEND_RL_HOME": str(HOME), "PYTHONPATH": os.pathsep.join(sys.path[:1])}
    done = subprocess.run(
        [sys.executable, *command], cwd=HOME, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout[done.stdout.index("actor_rollout_ref:") :]
    assert OmegaConf.create(printed) == compose(TUNED).config


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTION)
def test_verls_own_validation_accepts_a_recipe(name):
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = resolved(name, "performance")
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    validate_config(config=config, use_reference_policy=True, use_critic=False)
    assert rollout.engine_kwargs["vllm"]["compilation_config"]["cudagraph_capture_sizes"][-1] == rollout.max_num_seqs
    assert actor.megatron.context_parallel_size == actor.megatron.override_transformer_config["context_parallel_size"]
