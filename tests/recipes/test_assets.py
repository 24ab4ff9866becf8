"""The toy model, dataset and reward: made once, whole or not at all, and verified."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from errors import UserError
from recipes import assets, toy
from recipes.rewards import digits

MODEL = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts": 2,
    "num_experts_per_tok": 1,
}


def recipe(root, model=MODEL, train=6):
    return OmegaConf.create({"launch": {"assets": str(root), "model": model, "data": {"train": train, "val": 2}}})


def hugging_face(root, **arguments):
    """The model folder alone: the Megatron checkpoint needs the emulated devices."""
    return assets.weights(recipe(root, **arguments))[:1]


def make(wanted):
    said = []
    assets.make(wanted, "toy", dict(os.environ), said.append)
    return said


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("assets")
    make(hugging_face(root) + assets.data(recipe(root)))
    return root


def test_dataset_has_verls_columns_and_the_rows_asked_for(made):
    table = pyarrow.parquet.read_table(made / "data" / "train.parquet")
    assert table.num_rows == 6
    row = table.to_pylist()[0]
    left, right = row["prompt"][0]["content"].rstrip("=").split("+")
    assert row["reward_model"]["ground_truth"] == str(int(left) + int(right))
    assert {"data_source", "prompt", "ability", "reward_model", "extra_info"} <= row.keys()


def test_model_loads_with_its_tokenizer(made):
    config = json.loads((made / "model" / "config.json").read_text())
    assert config["model_type"] == "qwen3_moe"
    assert MODEL.items() <= config.items()
    tokenizer = toy.make_tokenizer()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3+4="}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\n3+4=<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer("3+4=")["input_ids"]) == "3+4="


def test_everything_is_the_same_when_made_again(made, tmp_path):
    make(hugging_face(tmp_path) + assets.data(recipe(tmp_path)))
    for name in ("model/manifest.json", "data/manifest.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((made / name).read_text())


def test_what_is_complete_is_left_alone(made):
    before = (made / "data" / "train.parquet").stat().st_mtime_ns
    assert make(assets.data(recipe(made))) == [f"{made / 'data'} is complete"]
    assert (made / "data" / "train.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "damage, expected",
    [
        (lambda folder: (folder / "train.parquet").write_bytes(b"PAR1"), "found 4 bytes"),
        (lambda folder: (folder / "train.parquet").unlink(), "found no readable file"),
        (lambda folder: (folder / assets.MANIFEST).unlink(), "expected a readable manifest.json"),
        (lambda folder: (folder / assets.MANIFEST).write_text("{}"), "expected a readable manifest.json"),
        (lambda folder: (folder / assets.MANIFEST).write_text("[]"), "expected a readable manifest.json"),
        (lambda folder: (folder / assets.MANIFEST).write_text("{"), "expected a readable manifest.json"),
        (lambda folder: (folder / assets.MANIFEST).write_bytes(b"\xff"), "expected a readable manifest.json"),
    ],
)
def test_damage_is_named_with_its_remedy_and_nothing_is_replaced(tmp_path, damage, expected):
    wanted = assets.data(recipe(tmp_path))
    make(wanted)
    damage(tmp_path / "data")
    left = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    with pytest.raises(UserError) as caught:
        make(wanted)
    assert expected in str(caught.value)
    assert f"rm -r {tmp_path / 'data'} && invoke data --recipe toy" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == left


def test_a_flipped_byte_is_found(tmp_path):
    wanted = assets.data(recipe(tmp_path))
    make(wanted)
    file = tmp_path / "data" / "val.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert [str(file) in fault for fault in assets.faults(wanted[0], "toy")] == [True]


def test_assets_of_other_arguments_are_refused(tmp_path):
    make(assets.data(recipe(tmp_path)))
    with pytest.raises(UserError) as caught:
        make(assets.data(recipe(tmp_path, train=7)))
    message = str(caught.value)
    assert "found it made with train 6 (recipe: 7); name another folder with launch.assets, or" in message
    assert "val" not in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["bytes", "sha256"]), inner),
)


@given(st.fixed_dictionaries({"files": JSON, "arguments": JSON}) | JSON)
def test_a_manifest_of_any_content_is_no_traceback(tmp_path_factory, manifest):
    folder = tmp_path_factory.mktemp("any") / "data"
    folder.mkdir()
    (folder / assets.MANIFEST).write_text(json.dumps(manifest))
    assert list(assets.faults(assets.Asset(folder, {"train": 6}, list, "data"), "toy"))


def test_two_commands_at_once_make_one_folder(tmp_path):
    code = (
        "import os, sys; from omegaconf import OmegaConf; from recipes import assets; "
        "print('ready', flush=True); sys.stdin.readline(); "
        f"wanted = assets.data(OmegaConf.create({OmegaConf.to_container(recipe(tmp_path))!r})); "
        "assets.make(wanted, 'toy', dict(os.environ), print)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=assets.HOME, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    assert [one.stdout.readline() for one in both] == ["ready\n"] * 2
    for one in both:
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.communicate(timeout=60)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert all("making" in text for text in said), "the second was to start before the first had finished"
    assert sum("is complete" in text for text in said) == 1
    assert os.listdir(tmp_path) == ["data"]


def test_a_recipe_without_toy_arguments_says_where_its_own_go(tmp_path):
    with pytest.raises(UserError, match=r"expected launch.assets and launch.data.*data.train_files"):
        assets.data(OmegaConf.create({"launch": {"assets": str(tmp_path)}}))


def test_a_model_that_cannot_be_made_gives_one_message_and_leaves_nothing(tmp_path):
    with pytest.raises(
        UserError,
        match=r"expected -m recipes\.toy model to succeed, found exit code 1: \w+Error",
    ):
        make(hugging_face(tmp_path, model={**MODEL, "num_attention_heads": "two"}))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_gives_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"file: expected to write there, found: (Not a directory|File exists).*launch\.assets"
    ):
        make(assets.data(recipe(tmp_path / "file")))


def test_killed_while_writing_the_folder_is_made_anew(tmp_path):
    script = (
        "import os; from omegaconf import OmegaConf; from recipes import assets; "
        f"wanted = assets.weights(OmegaConf.create({OmegaConf.to_container(recipe(tmp_path))!r}))[:1]; "
        "assets.make(wanted, 'toy', dict(os.environ), print)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=assets.HOME, start_new_session=True)
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "model").exists()
    make(hugging_face(tmp_path))
    assert list(assets.faults(hugging_face(tmp_path)[0], "toy")) == []


@pytest.mark.parametrize("answer, score", [("1234", 1.0), ("ab12", 0.5), ("", 0.0), ("none", 0.0), ("٣", 0.0)])
def test_reward_is_the_share_of_ascii_digits(answer, score):
    assert digits.compute_score("toy/sum", answer, "7") == score
