"""What a training makes first: all that the recipe describes and uses, and nothing that it does not use."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes import prepare
from recipes.compose import Recipe

OWN_MODEL = {"actor_rollout_ref": {"actor": {"path": "/own"}, "model": {"path": "/own/model"}}}


def recipe(root: Path, own: dict) -> Recipe:
    config = {
        "launch": {"assets": str(root), "model": {"hidden_size": 32}, "data": {"train": 6}},
        "data": {"train_files": ["/own/more.parquet", "${launch.assets}/data/train.parquet"]},
        "actor_rollout_ref": {
            "model": {"path": "${launch.assets}/model"},
            "actor": {"path": "${launch.assets}/megatron"},
        },
    }
    return Recipe("toy", "toy", root / "toy.yaml", OmegaConf.merge(config, own))


@pytest.mark.parametrize(
    ("own", "made"),
    [
        ({}, ["model", "megatron", "data"]),
        (OWN_MODEL, ["data"]),
        ({"data": {"train_files": "/own/train.parquet"}}, ["model", "megatron"]),
        ({"data": {"train_files": None}, **OWN_MODEL}, []),
        ({"actor_rollout_ref": {"model": {"path": "/own"}}}, ["model", "megatron", "data"]),
    ],
)
def test_only_what_is_used_is_made_and_verified(tmp_path, monkeypatch, own, made):
    asked = []
    monkeypatch.setattr(prepare.assets, "make", lambda wanted, *_: asked.extend(one.folder.name for one in wanted))
    monkeypatch.setattr(prepare.command, "added_environment", lambda *_: {})
    prepare.everything(recipe(tmp_path, own), None)
    assert asked == made
