"""What the real MindSpeed says to overrides, in a process of its own: `python real_mindspeed.py < cases.json`.

MindSpeed's adaptor is imported as a worker does it, its arguments are set as `repatch` sets them, and verl's own
converter makes the TransformerConfig, whose __post_init__ runs the validators of all features.
"""

import contextlib
import copy
import json
import sys
import traceback
from itertools import groupby

import mindspeed.megatron_adaptor  # noqa: F401  first of all: it patches what is imported later
import torch
import torch.distributed as dist
from mindspeed.args_utils import get_full_args
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen3MoeConfig

SIZES = ("tp", "pp", "cp", "ep", "etp")


@contextlib.contextmanager
def layout(tp: int, pp: int, cp: int, ep: int, etp: int):
    """Megatron's groups of one layout, in a world that is faked by torch's own "fake" process group."""
    from megatron.core import parallel_state

    world = tp * pp * cp * ep
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        create_gloo_process_groups=False,
    )
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def verdicts(cases: list[dict]) -> list[str | None]:
    """For each case None, or who refuses it, where and how."""
    fresh = copy.deepcopy(vars(get_full_args()))
    answers: list[str | None] = []
    for sizes, group in groupby(cases, key=lambda case: tuple(case["sizes"][name] for name in SIZES)):
        with layout(*sizes):
            answers += [_verdict(case, fresh) for case in group]
    return answers


def _verdict(case: dict, fresh: dict) -> str | None:
    from verl.models.mcore.config_converter import hf_to_mcore_config_qwen3moe

    arguments, override = get_full_args(), case["override"]
    vars(arguments).clear()
    vars(arguments).update(copy.deepcopy(fresh) | override)
    try:
        hf_to_mcore_config_qwen3moe(_model(case["model"]), torch.bfloat16, **override)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "features_manager" in frame.filename]
        if not frames:
            return f"others: {type(error).__name__}: {error}"
        place = f"{frames[-1].filename.rpartition('features_manager/')[2]}:{frames[-1].lineno}"
        return f"mindspeed: {type(error).__name__}: {error} ({place})"
    return None


def _model(model: dict) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        vocab_size=model["vocabulary"],
        hidden_size=model["hidden"],
        intermediate_size=model["width"],
        moe_intermediate_size=model["expert_width"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"],
        num_experts=model["experts"],
        num_experts_per_tok=model["active"],
    )


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        answers = verdicts(json.load(sys.stdin))
    print(json.dumps(answers))
