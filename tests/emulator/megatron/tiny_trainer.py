"""The tiny model under one parallel layout: verl's model, packed forward and loss through Megatron's schedule."""

import os
import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from transformers import AutoConfig
from verl.models.mcore import get_mcore_forward_fn, hf_to_mcore_config, init_mcore_model
from verl.utils.megatron_utils import get_model, unwrap_model

RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


class Layout(NamedTuple):
    """Parallel sizes, precision and recomputation, as written in a layout's name: tp2-ep2, cp2-bf16, pp2-recompute."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dtype: torch.dtype = torch.float32
    options: dict = {}  # noqa: RUF012  never changed

    @classmethod
    def parse(cls, name: str):
        sizes = {key: int(value) for key, value in re.findall(r"\b(tp|pp|cp|ep|etp)(\d)", name)}
        dtype = torch.bfloat16 if "bf16" in name else torch.float32
        return cls(**sizes, dtype=dtype, options=RECOMPUTE if "recompute" in name else {})

    def start(self):
        """Makes it the process's layout."""
        mpu.destroy_model_parallel()
        mpu._POSITION_EMBEDDING_GLOBAL_RANKS = mpu._EMBEDDING_GLOBAL_RANKS = None  # destroy forgets these two
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=self.tp,
            pipeline_model_parallel_size=self.pp,
            context_parallel_size=self.cp,
            expert_model_parallel_size=self.ep,
            expert_tensor_parallel_size=self.etp,
        )
        model_parallel_cuda_manual_seed(0)


class Trainer:
    """verl's model with the weights of FOLDER/mcore under a layout, wrapped for data parallelism.

    Without the distributed optimizer the data-parallel ranks hold whole gradients, in `parameter.main_grad`.
    """

    def __init__(self, folder: Path, layout: Layout, use_distributed_optimizer=False):
        layout.start()
        self.folder, self.layout = folder, layout
        self.hf_config = AutoConfig.from_pretrained(folder / "hf")
        self.config = hf_to_mcore_config(self.hf_config, layout.dtype, **layout.options)
        self.config.finalize_model_grads_func = finalize_model_grads
        self.chunks = get_model(
            self._model, transformer_config=self.config, use_distributed_optimizer=use_distributed_optimizer
        )
        self.module = unwrap_model(self.chunks[0])
        self.module.load_state_dict(dist_checkpointing.load(self.module.sharded_state_dict(), str(folder / "mcore")))

    def _model(self, pre_process, post_process):
        return init_mcore_model(
            self.config, self.hf_config, pre_process, post_process,
            share_embeddings_and_output_weights=False, value=False, freeze_moe_router=False,
        )  # fmt: skip

    def share(self) -> dict:
        """This data-parallel rank's sequences of FOLDER/batch.pt, on the NPU."""
        rank, size = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
        return {name: t.chunk(size)[rank].npu() for name, t in torch.load(self.folder / "batch.pt").items()}

    def forward_backward(self):
        """Mean negative log-prob over all tokens and its gradients; returns the share's log-probs on the last stage.

        Gradients are averaged over the data-parallel ranks, so a rank's part of the mean is weighted by their number.
        """
        batch, found = self.share(), []
        labels, mask = batch["input_ids"].roll(-1, 1), batch["attention_mask"].clone()
        mask[:, -1] = False
        weight = mpu.get_data_parallel_world_size() / total_tokens(mask)

        def log_probs(logits, label, label_mask):
            return {"log_probs": -vocab_parallel_cross_entropy(logits.float(), label).masked_fill(~label_mask, 0.0)}

        def loss(output, _):
            found.append(output["log_probs"].detach().float().cpu())
            return -output["log_probs"].sum() * weight, {}

        def step(_, model):
            ids, attention = batch["input_ids"], batch["attention_mask"]
            output = get_mcore_forward_fn(self.hf_config)(
                model, ids, attention, (attention.cumsum(1) - 1).clamp(min=0),
                sequence_parallel=self.layout.tp > 1, logits_processor=log_probs,
                logits_processor_args={"label": labels, "label_mask": mask},
            )  # fmt: skip
            return output, partial(loss, _=None)

        get_forward_backward_func()(
            forward_step_func=step, data_iterator=None, model=self.chunks, num_microbatches=1,
            seq_length=batch["input_ids"].numel(), micro_batch_size=1, forward_only=False,
        )  # fmt: skip
        return found[0] if found else None


def total_tokens(mask) -> float:
    """Tokens with a loss over all data-parallel ranks."""
    count = mask.sum().float()
    dist.all_reduce(count, group=mpu.get_data_parallel_group())
    return count.item()


def gather_log_probs(log_probs):
    """The whole batch's log-probs on every rank: the shares of the last stage, in data-parallel order."""
    first = mpu.get_tensor_model_parallel_rank() == mpu.get_context_parallel_rank() == 0
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, (mpu.get_data_parallel_rank(), log_probs if first else None))
    return torch.cat([share for _, share in sorted((s for s in shares if s[1] is not None), key=lambda s: s[0])])


def start_process_group():
    """This process's NPU and its place among the ranks, from the launcher's variables."""
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
