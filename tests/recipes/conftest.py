"""A recipe that the launcher accepts and that the fake trainer runs: tiny files, real formats."""

import json
import struct
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml

HERE = Path(__file__).resolve().parent
MODEL = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}


def safetensors(file: Path) -> None:
    """A whole safetensors file with one tensor of eight bytes."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The file of a recipe whose model, data and reward are there."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    (model / "tokenizer.json").write_text("{}")
    safetensors(model / "model.safetensors")
    table = pyarrow.table({"prompt": ["a"] * 8, "data_source": ["toy"] * 8})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    (tmp_path / "reward.py").write_text("def compute_score(*_, **__):\n    return 0.0\n")
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(_recipe(tmp_path), sort_keys=False))
    return file


def _recipe(folder: Path) -> dict:
    data = str(folder / "train.parquet")
    return {
        "defaults": ["ppo_megatron_trainer", "_self_"],
        "launch": {
            "matrix": "cpu",
            "nodes": 1,
            "hardware": "emulated",
            "env": {"PYTHONPATH": str(HERE / "fake_verl"), "FAKE_STEP_SECONDS": 0.01},
        },
        "data": {"train_files": data, "val_files": data, "train_batch_size": 4},
        "custom_reward_function": {"path": str(folder / "reward.py")},
        "actor_rollout_ref": {
            "model": {"path": str(folder / "model")},
            "actor": {"ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 1},
            "rollout": {
                "name": "vllm",
                "tensor_model_parallel_size": 1,
                "n": 2,
                "log_prob_micro_batch_size_per_gpu": 1,
            },
        },
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {"n_gpus_per_node": 2, "total_training_steps": 6, "save_freq": 2, "logger": ["console"]},
    }
