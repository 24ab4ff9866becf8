"""Each thing that would stop a run is found before the start, in one message, and a sound recipe has no finding."""

import json
import socket
from pathlib import Path

import pytest

from errors import UserError
from recipes import preflight, prepare, scratch
from recipes.compose import compose


def findings(recipe, *settings) -> list[str]:
    return preflight.findings(compose(str(recipe), settings), recipe.parent / "run")


def only(recipe, *settings) -> str:
    found = findings(recipe, *settings)
    assert len(found) == 1, found
    assert "expected" in found[0] and "found" in found[0] and "; " in found[0], "expected, found, what to do"
    return found[0]


def cut(file, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])


def test_a_sound_recipe_has_no_finding(recipe):
    assert findings(recipe) == []
    preflight.check(compose(str(recipe)), recipe.parent / "run")


def test_findings_come_in_one_message(recipe):
    (recipe.parent / "reward.py").unlink()
    (recipe.parent / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError) as caught:
        preflight.check(compose(str(recipe)), recipe.parent / "run")
    assert caught.value.code == 1 and "2 finding(s)" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_weights_that_are_cut_off(recipe, share):
    cut(recipe.parent / "model" / "model.safetensors", share)
    assert "model.safetensors" in only(recipe)


def test_weights_with_a_damaged_header_or_more_bytes_than_it_says(recipe):
    file = recipe.parent / "model" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole + b"x")
    assert f"{len(whole) + 1} bytes where the header says {len(whole)}" in only(recipe)
    file.write_bytes(whole[:9] + b"?" + whole[10:])
    assert "a damaged header" in only(recipe)


def test_a_weight_file_that_the_index_names_is_missing(recipe):
    index = recipe.parent / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert "model-2.safetensors" in only(recipe)
    index.write_text("{")
    assert "weight_map" in only(recipe)


@pytest.mark.parametrize(("text", "part"), [("{}", "model_type"), ("{", "JSON"), (None, "config.json")])
def test_a_models_config(recipe, text, part):
    file = recipe.parent / "model" / "config.json"
    file.unlink() if text is None else file.write_text(text)
    assert part in only(recipe)


def test_no_weights_at_all(recipe):
    (recipe.parent / "model" / "model.safetensors").unlink()
    assert "*.safetensors" in only(recipe)
    assert "no " in only(recipe, f"actor_rollout_ref.model.path={recipe.parent}/nowhere")


def test_a_name_on_the_model_hub_is_left_to_the_hub(recipe):
    assert findings(recipe, "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B") == []


def test_a_megatron_checkpoint(recipe):
    key = "actor_rollout_ref.actor.megatron"
    on = f"{key}.use_dist_checkpointing=true"
    assert "null" in only(recipe, on)
    assert "no folder" in only(recipe, on, f"{key}.dist_checkpointing_path={recipe.parent}/nowhere")
    found = findings(recipe, on, f"{key}.dist_checkpointing_path={recipe.parent}/model")
    assert any("metadata.json is missing" in one for one in found)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99])
def test_data_that_is_cut_off(recipe, share):
    cut(recipe.parent / "train.parquet", share)
    found = findings(recipe)  # the file is named for training and for validation
    assert len(found) == 2 and all("expected a whole parquet file" in one for one in found)


def test_data_without_the_column_of_the_prompts(recipe):
    found = findings(recipe, "data.prompt_key=question")
    assert len(found) == 2 and all("expected a column question, found prompt, data_source" in one for one in found)


def test_data_that_is_not_there(recipe):
    assert "no /nowhere.parquet" in only(recipe, "data.val_files=/nowhere.parquet")
    assert "no /nowhere.parquet" in only(recipe, f"data.val_files=[{recipe.parent}/train.parquet,/nowhere.parquet]")


def test_more_prompts_a_step_than_rows(recipe):
    assert "at most the 8 rows" in only(recipe, "data.train_batch_size=16")


@pytest.mark.parametrize(
    ("text", "part"),
    [("def other(): pass", "define compute_score"), ("def (", "expected Python"), (None, "expected a Python file")],
)
def test_a_reward_function(recipe, text, part):
    file = recipe.parent / "reward.py"
    file.unlink() if text is None else file.write_text(text)
    assert part in only(recipe)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (["trainer.n_gpus_per_node=16", "actor_rollout_ref.rollout.n=4"], "expected 16 emulated NPUs"),
        (["+ray_kwargs.ray_init.resources={NPU: 1}"], "ray_kwargs.ray_init.resources.NPU"),
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
         "rollout tp 4 × dp 1 = 4: expected a divisor of the 2 devices, found a rest of 2"),
        (["data.train_batch_size=3", "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.ppo_mini_batch_size=3"],
         "n 3 = 9: expected a multiple of the 2 devices, found a rest of 1"),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=8"], "expected at most data.train_batch_size, 4, found 8"),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=3"], "expected a multiple of its mini-batch (m n) // dp = 3"),
        (["actor_rollout_ref.actor.megatron.context_parallel_size=4"],
         "cp 4 = 4: expected a divisor of the 2 devices, found a rest of 2"),
        (["trainer.n_gpus_per_node=6", "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=3",
          "data.train_batch_size=6", "actor_rollout_ref.actor.ppo_mini_batch_size=6"],
         "4 layers over 3 stages of pp 3"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit(recipe, settings, part):
    assert part in only(recipe, *settings)


@pytest.mark.parametrize("value", [0, -8])
@pytest.mark.parametrize(
    "key",
    [
        "data.train_batch_size",
        "data.max_prompt_length",
        "data.max_response_length",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
        "trainer.total_epochs",
        "trainer.total_training_steps",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "actor_rollout_ref.rollout.max_num_seqs",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.actor.ppo_epochs",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
    ],
)
def test_a_size_below_one(recipe, key, value):
    found = findings(recipe, f"{key}={value}")
    assert f"- {key}: expected a whole number of at least 1, found {value}; write 1 or more" in found
    assert all("at least 1" in one for one in found), "the same size under another key, at most"


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("NPU_EMULATOR_DEVICES=x", "NPU_EMULATOR_DEVICES must be a number above 0, found 'x'"),
        ("NPU_EMULATOR_DEVICES=0", "NPU_EMULATOR_DEVICES must be a number above 0, found '0'"),
        ("NPU_EMULATOR_MEMORY_GIB=abc", "NPU_EMULATOR_MEMORY_GIB must be a number above 0, found 'abc'"),
        ("NPU_EMULATOR_MEMORY_GIB='nan'", "NPU_EMULATOR_MEMORY_GIB"),
        ("NPU_EMULATOR_MEMORY_GIB='inf'", "NPU_EMULATOR_MEMORY_GIB"),
        ("NPU_EMULATOR_POISON=all", "NPU_EMULATOR_POISON must be one of off, fresh, freed"),
        ("NPU_EMULATOR_DEFER=2", "NPU_EMULATOR_DEFER must be 0 or 1"),
        ("NPU_EMULATOR_SOC=910", "NPU_EMULATOR_SOC must be one of 223"),
    ],
)
def test_settings_of_the_emulator_that_cannot_be_used(recipe, monkeypatch, setting, part):
    def refusal(*given: str) -> str:
        with pytest.raises(UserError) as caught:
            prepare.site(compose(str(recipe), given), build=False)
        assert caught.value.code == 1
        return str(caught.value)

    assert part in refusal(f"+launch.env.{setting}")
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value.strip("'"))
    assert part in refusal()
    assert prepare.site(compose(str(recipe), ["launch.hardware=ascend"])) is None, "real devices do not read it"


def test_what_can_be_made_is_offered_and_nothing_else(recipe):
    nowhere = [f"actor_rollout_ref.model.path={recipe.parent}/no", f"data.val_files={recipe.parent}/no"]
    assert all("invoke" not in one for one in findings(recipe, *nowhere))
    described = findings(recipe, *nowhere, "+launch.model={a: 1}", "+launch.data={a: 1}")
    assert f"run `invoke weights --recipe {recipe}`, or set actor_rollout_ref.model.path" in described[0]
    assert f"run `invoke data --recipe {recipe}`, or set data.val_files" in described[1]


def test_more_devices_of_the_emulator_are_believed(recipe):
    settings = ["trainer.n_gpus_per_node=16", "actor_rollout_ref.rollout.n=4"]
    assert findings(recipe, *settings, "+launch.env.NPU_EMULATOR_DEVICES=16") == []


def test_steps_that_are_not_printed(recipe):
    assert "expected console in it, found ['tensorboard']" in only(recipe, "trainer.logger=[tensorboard]")
    assert findings(recipe, "trainer.logger=console") == []


def test_real_devices_are_counted(recipe):
    assert "expected 2 NPUs (/dev/davinci*)" in only(recipe, "launch.hardware=ascend")


def test_a_port_in_use(recipe):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        key = "+ray_kwargs.ray_init.dashboard_port"
        assert f"expected port {number} to be free" in only(recipe, f"{key}={number}")
        assert "MASTER_PORT" in only(recipe, f"+launch.env.MASTER_PORT={number}")
    assert findings(recipe, f"{key}={number}") == []


def test_a_place_that_cannot_be_written(recipe):
    composed = compose(str(recipe))
    assert "expected a writable place, found /proc" in preflight.findings(composed, Path("/proc/run"))[0]
    assert "is a file" in preflight.findings(composed, recipe / "run")[0]


def test_a_disk_without_room(recipe, monkeypatch):
    usage = preflight.machine.shutil.disk_usage("/")
    monkeypatch.setattr(preflight.machine.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    assert "found 1 MiB" in only(recipe)


def test_temporary_folders_too_deep_for_sockets(recipe, monkeypatch):
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: "/tmp/" + "x" * 60)
    assert scratch.place().as_posix() == "/tmp"  # /tmp is tried as well
    monkeypatch.setattr(scratch.os, "access", lambda *_: False)
    assert any("TMPDIR" in one for one in findings(recipe))
