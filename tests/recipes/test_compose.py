"""Composing recipes over verl's real config, and every way of mistyping `--set`."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from errors import UserError
from recipes import emulated, keys, preflight
from recipes.compose import FOLDER, HOME, compose, find, names, verl_configs, verl_defaults, verl_types


def refusal(recipe, *given: str) -> str:
    with pytest.raises(UserError) as caught:
        compose(str(recipe), given)
    assert caught.value.code == 2
    return str(caught.value)


def test_composing_imports_neither_torch_nor_ray_nor_verl():
    code = (
        "import sys; from recipes.compose import compose; compose('smoke', ['trainer.total_training_steps=3']);"
        "print(sorted({'torch', 'ray', 'verl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("name", names())
def test_a_recipe_composes_as_it_does_for_verl_alone(name):
    # as `main_ppo --config-dir recipes --config-name NAME`: its own config folder first, --config-dir after it
    places = create_config_search_path(str(verl_configs()))
    places.prepend("command-line", f"file://{FOLDER}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    alone = Hydra.create_main_hydra2("main_ppo", places).compose_config(
        name, [], RunMode.RUN, with_log_configuration=False
    )
    plain = {key: value for key, value in OmegaConf.to_container(alone).items() if key != "hydra"}
    assert OmegaConf.to_container(compose(name).config) == plain


def test_settings_of_each_kind_are_applied(recipe):
    wanted = [
        "trainer.total_training_steps=3",
        "trainer.total_epochs=2",
        "actor_rollout_ref.actor.optim.lr=1",  # a whole number where a number is wanted
        "actor_rollout_ref.rollout.max_model_len=64",  # null in verl's config, Optional[int] in its dataclass
        "trainer.logger=console",  # verl takes one name as well as a list
        "data.train_files=[a.parquet,b.parquet]",
        "trainer.experiment_name='123'",
        "trainer.project_name=${trainer.experiment_name}",
        "actor_rollout_ref.rollout.n=${trainer.nnodes}",
        "+launch.env.NEW=1",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.seed=4",
        "++trainer.nnodes=1",
        "+some.new.key={a: [1, 2]}",
        "~launch.env.FAKE_STEP_SECONDS",
    ]
    config = compose(str(recipe), wanted).config
    assert config.trainer.total_training_steps == 3 and config.actor_rollout_ref.rollout.max_model_len == 64
    assert config.trainer.project_name == "123" and config.some.new.key.a[1] == 2
    assert "FAKE_STEP_SECONDS" not in config.launch.env


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        (
            "trainer.total_traning_steps=3",
            ["trainer.total_traning_steps", "nearest keys: trainer.total_training_steps"],
        ),
        ("lr=1", ["actor_rollout_ref.actor.optim.lr", "+lr=VALUE"]),
        ("actor_rollout_ref.rolout.n=4", ["nearest keys: actor_rollout_ref.rollout.n"]),
        ("qqqqqqqq=4", ["no key is like it"]),
        ("actor_rollout_ref.rollout.n=four", ["expected a whole number", "'four', which is text"]),
        ("data.train_batch_size=8.5", ["expected a whole number", "8.5"]),
        ("trainer.val_before_train=1", ["expected true or false", "1, which is a whole number"]),
        ("actor_rollout_ref.actor.optim.lr=fast", ["expected a number", "'fast'"]),
        ("actor_rollout_ref.actor.optim.lr=[1]", ["expected a number", "which is a list"]),
        ("actor_rollout_ref.rollout.n=null", ["expected a whole number", "null"]),
        ("actor_rollout_ref.rollout.max_model_len=abc", ["expected a whole number or null", "'abc'"]),
        ("trainer.total_training_steps=ten", ["expected a whole number", "'ten'"]),
        ("trainer.experiment_name=123", ["expected text", "\"trainer.experiment_name='123'\""]),
        ("trainer.nnodes", ["without a value", "trainer.nnodes=VALUE"]),
        ("trainer.nnodes=", ["without a value", "trainer.nnodes=VALUE"]),
        ("trainer.nnodes=1,2", ["expected one value, found several", "[a,b]"]),
        ("data.train_files=[a", ["KEY=VALUE", "'data.train_files=[a'"]),
        ("=3", ["KEY=VALUE", "'=3'"]),
        ("~trainer.nnode", ["expected a key that is there", "trainer.nnodes"]),
        ("+trainer.nnodes=2", ["expected a key that is not there yet", "drop the +"]),
        ("hydra.run.dir=/x", ["hydra.run.dir", "set by the launcher"]),
        ("launch.env.NEW=1", ["launch.env.NEW", "+launch.env.NEW=VALUE"]),
        ("trainer=3", ["trainer", "a mapping", "3"]),
        ("~trainer.nnodes", ["~trainer.nnodes", "verl reads", "give it another value"]),
        ("~trainer", ["~trainer", "verl reads"]),
        ("launch=5", ["launch: expected a mapping", "5"]),
        ("launch.env=5", ["launch.env: expected a mapping", "5"]),
        ("ray_kwargs.ray_init=5", ["ray_kwargs.ray_init: expected a mapping", "5"]),
        ("+launch.model=5", ["launch.model: expected a mapping", "5"]),
        ("+launch.node=5", ["launch.node", "launch.nodes"]),
        ("+launch.env.NEW=true", ["launch.env.NEW", "for text write \"launch.env.NEW='true'\""]),
        ("trainer.nnodes=???", ["trainer.nnodes", "???", "set it"]),
        ("trainer.nnodes=${trainer.project_name}", ["trainer.nnodes", "a whole number", "${trainer.project_name}"]),
        ("trainer.project_name=${no.where}", ["trainer.project_name", "${no.where}", "no.where"]),
        ("trainer.project_name=${oc.env:NOWHERE_AT_ALL}", ["trainer.project_name", "NOWHERE_AT_ALL"]),
    ],
)
def test_a_bad_setting_is_named_in_one_line(recipe, setting, parts):
    message = refusal(recipe, setting)
    assert len(message.splitlines()) == 1
    for part in parts:
        assert part in message


def test_all_bad_settings_are_told_at_once(recipe):
    lines = refusal(recipe, "trainer.nnode=1", "trainer.nnodes=1", "trainer.nnodes=x", "data.shufle=true").splitlines()
    assert [line.split(":")[0] for line in lines] == ["trainer.nnode", "trainer.nnodes", "data.shufle"]


def test_an_unknown_recipe_names_the_nearest():
    message = refusal("smoek")
    assert "did you mean smoke?" in message and str(FOLDER / "smoek.yaml") in message
    assert "expected --recipe NAME" in refusal("")
    assert find("smoke") == FOLDER / "smoke.yaml"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"trainer": {"total_epoch": 2}}, ["trainer.total_epoch", "trainer.total_epochs"]),
        ({"trainer": {"total_epochs": "two"}}, ["trainer.total_epochs", "expected a whole number", "'two'"]),
        ({"actor_rolout_ref": {"rollout": {"n": 2}}}, ["actor_rolout_ref", "actor_rollout_ref"]),
        ({"launch": {"node": 1}}, ["launch.node", "launch.nodes"]),
        ({"launch": {"nodes": "one"}}, ["launch.nodes", "expected a whole number", "'one'"]),
        ({"custom_reward_function": {"path": []}}, ["custom_reward_function.path", "expected text or null", "a list"]),
        ({"launch": {"model": 5}}, ["launch.model", "expected a mapping", "5"]),
        ({"custom_reward_function": {"reward_kwargs": 5}}, ["reward_kwargs", "expected a mapping", "5"]),
        ({"actor_rollout_ref": {"rollout": {"n": 2}}}, ["actor_rollout_ref.rollout.name", "???", "set it"]),
    ],
)
def test_a_mistake_in_the_recipe_itself_is_named_with_its_file(recipe, change, parts):
    written = yaml.safe_load(recipe.read_text())
    for top, inner in change.items():
        written.setdefault(top, {}).update(inner)
    recipe.write_text(yaml.safe_dump(written, sort_keys=False))
    message = refusal(recipe)
    assert message.startswith(f"{recipe}: ") and len(message.splitlines()) == 1
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("defaults: [ppo_megatron_trainer, _self_\n", ["line", "expected YAML"]),
        ("defaults: [ppo_megatron_trainr, _self_]\n", ["ppo_megatron_trainr"]),
        ("- a\n- b\n", ["expected"]),
        ("", ["inherits from verl's ppo_megatron_trainer", "defaults: [ppo_megatron_trainer, _self_]"]),
        ("# nothing\n", ["inherits"]),
        ("trainer: {nnodes: 1}\n", ["inherits"]),
        (
            "defaults: [ppo_trainer, _self_]\nlaunch: {matrix: cpu}\n",
            ["inherits", "actor_rollout_ref.actor.optim.optimizer"],
        ),
        ("defaults: [ppo_megatron_trainer, _self_]\nlaunch: 5\n", ["launch: expected a mapping", "5"]),
        ("defaults: [ppo_megatron_trainer, _self_]\nlaunch:\n", ["launch: expected a mapping", "null"]),
        ("# gr\xfcn\n".encode("latin-1"), ["expected UTF-8", "0xfc"]),
        ("a: \0\n", ["expected"]),
    ],
)
def test_a_file_that_does_not_compose_gives_one_line(tmp_path: Path, text, parts):
    file = tmp_path / "broken.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refusal(file)
    assert str(file) in message and len(message.splitlines()) == 1
    for part in parts:
        assert part in message


def test_recipes_that_inherit_from_each_other_are_refused(tmp_path):
    for name, parent in (("first", "second"), ("second", "first")):
        (tmp_path / f"{name}.yaml").write_text(f"defaults: [{parent}, _self_]\n")
    assert "found first → second → first" in refusal(tmp_path / "first.yaml")


def test_verls_own_config_has_no_fault_against_itself():
    assert list(keys.faults(verl_defaults(), verl_defaults(), verl_types())) == []


def test_a_checkout_below_any_path_composes(tmp_path):
    """Spaces, commas, brackets, quotes, letters beyond ASCII: none of them is grammar in a path."""
    home = tmp_path / "a b, ü='c' {d} [e] (f)"
    verl = home / "site" / "verl"
    (verl / "trainer").mkdir(parents=True)
    (verl / "__init__.py").touch()
    (verl / "trainer" / "config").symlink_to(verl_configs())
    for name in ("recipes", "errors.py", "manifest.py", "matrix.py", "matrix.toml"):
        (home / name).symlink_to(HOME / name)
    code = (
        "import sys; from pathlib import Path; from recipes import compose\n"
        f"compose.FOLDER = Path({str(home / 'recipes')!r})\n"
        "print(compose.compose('smoke', ['trainer.nnodes=1']).config.trainer.nnodes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env={"PYTHONPATH": f"{home / 'site'}:{home}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "1\n", done.stderr


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3))
KEYS = st.sampled_from(
    [
        *("launch", "launch.env", "launch.env.X", "launch.model", "launch.nodes", "launch.matrix", "launch.assets"),
        *("trainer", "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.logger", "trainer.total_training_steps"),
        *("data", "data.train_files", "data.train_batch_size", "data.prompt_key", "actor_rollout_ref.rollout.n"),
        *("custom_reward_function.path", "custom_reward_function.name", "actor_rollout_ref.model.path", "defaults"),
        *("actor_rollout_ref.actor", "actor_rollout_ref.actor.ppo_mini_batch_size", "ray_kwargs.ray_init.resources"),
        *("actor_rollout_ref.actor.megatron.pipeline_model_parallel_size", "algorithm.adv_estimator", "hydra"),
    ]
)
FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def only_refused(recipe: Path, *given: str) -> None:
    """Whatever is said is either taken or answered in words."""
    try:
        composed = compose(str(recipe), given)
        if not list(emulated.faults(composed.config)):
            preflight.findings(composed, recipe.parent / "run")
    except UserError as error:
        assert str(error)


@FUZZ
@given(KEYS, VALUES)
def test_a_recipe_with_any_value_is_no_traceback(recipe, key, value):
    written = yaml.safe_load(recipe.read_text())
    node, (*path, last) = written, key.split(".")
    for name in path:
        node = node.setdefault(name, {})
    node[last] = value
    file = recipe.with_name("any.yaml")
    file.write_text(yaml.safe_dump(written, sort_keys=False, allow_unicode=True))
    only_refused(file)


@FUZZ
@given(st.sampled_from(["", "+", "++", "~"]), KEYS, st.just("=") | st.text(max_size=2), st.text(max_size=8) | SCALARS)
def test_any_setting_is_no_traceback(recipe, sign, key, equals, value):
    only_refused(recipe, f"{sign}{key}{equals}{value}")
