"""Program, one process a rank: training steps with the distributed optimizer, a checkpoint between them, and its loads.

usage: resume.py FOLDER         (FOLDER as reference.py left it)
  FOLDER/resume.pt   what each rank found, see `main`

Checkpoints are written and read by verl's functions, as its checkpoint manager calls them.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.tensor_parallel.random import (
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
    get_expert_parallel_rng_tracker_name,
)
from omegaconf import OmegaConf
from tiny_trainer import Layout, Trainer, start_process_group
from verl.utils.megatron.dist_checkpointing import load_dist_checkpointing, save_dist_checkpointing
from verl.utils.megatron.optimizer import get_megatron_optimizer, init_megatron_optim_config
from verl.utils.megatron_utils import (
    load_megatron_model_to_gpu,
    load_megatron_optimizer,
    offload_megatron_model_to_cpu,
    offload_megatron_optimizer,
)

# All with expert parallelism: with it Megatron keeps two optimizers, and its checkpoint has other keys than without.
FIRST, OTHER, THIRD = (Layout.parse(name) for name in ("tp2-ep2-bf16", "pp2-cp2-ep2-bf16", "ep4-bf16"))
OPTIMIZER = {"optimizer": "adam", "lr": 1e-2, "min_lr": 0.0, "clip_grad": 1.0, "weight_decay": 0.1}


class Training:
    """The tiny model with verl's optimizer."""

    def __init__(self, folder: Path, layout: Layout):
        self.trainer = Trainer(folder, layout, use_distributed_optimizer=True)
        self.optimizer = get_megatron_optimizer(
            self.trainer.chunks, init_megatron_optim_config(OmegaConf.create(OPTIMIZER))
        )

    def step(self) -> float:
        """One update; returns the gradient's norm."""
        self.optimizer.zero_grad()
        for chunk in self.trainer.chunks:
            chunk.zero_grad_buffer()
        self.trainer.forward_backward()
        successful, norm, _ = self.optimizer.step()
        assert successful
        return float(norm)

    def sharded_state(self, is_loading=False) -> dict:
        """Model and optimizer as verl's checkpoint manager gathers them."""
        state = {"model": self.trainer.module.sharded_state_dict()}
        state["optimizer"] = self.optimizer.sharded_state_dict(state, is_loading=is_loading)
        return state

    def save(self, path: Path):
        path.mkdir(parents=True, exist_ok=True)
        save_dist_checkpointing(self.sharded_state(), str(path))

    def load(self, path: Path):
        state = load_dist_checkpointing(self.sharded_state(is_loading=True), str(path))
        self.trainer.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return self

    def weights(self) -> list[torch.Tensor]:
        """Copies of this rank's weights."""
        return [parameter.detach().cpu().clone() for parameter in self.trainer.module.parameters()]

    def snapshot(self) -> list[torch.Tensor]:
        """This rank's weights, and its shard of the optimizer: step numbers, master weights, moments."""
        tensors = []
        for optimizer in (part.optimizer for part in self.optimizer.chained_optimizers):
            for group in optimizer.param_groups:
                tensors.append(torch.tensor(group["step"]))
                for parameter in group["params"]:
                    tensors += [parameter, *optimizer.state[parameter].values()]
        return self.weights() + [tensor.detach().cpu().clone() for tensor in tensors]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Same number of tensors, all bit-identical."""
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def resumed(folder: Path) -> dict:
    """A second step in the unbroken run, and in one that begins with the checkpoint of the first."""
    unbroken = Training(folder, FIRST)
    start = unbroken.weights()
    norms = [unbroken.step()]
    unbroken.save(folder / "first")
    norms.append(unbroken.step())
    again = Training(folder, FIRST).load(folder / "first")
    norm = again.step()
    parts = [part.optimizer for part in again.optimizer.chained_optimizers]
    return offloaded(again) | {
        "steps": [group["step"] for part in parts for group in part.param_groups],
        "norms": norms,
        "norm_after_resume": norm,
        "resume_is_identical": equal(unbroken.snapshot(), again.snapshot()),
        "weights_moved": not equal(start, unbroken.weights()),
    }


def offloaded(training: Training) -> dict:
    """verl's offloading of weights and optimizer to the host, and back."""
    before, used = training.snapshot(), torch.npu.memory_allocated()
    offload_megatron_model_to_cpu(training.trainer.chunks)
    offload_megatron_optimizer(training.optimizer)
    freed = used - torch.npu.memory_allocated()
    load_megatron_model_to_gpu(training.trainer.chunks)
    load_megatron_optimizer(training.optimizer)
    return {"offload_freed": freed, "offload_is_identical": equal(before, training.snapshot())}


def under_another_layout(folder: Path) -> dict:
    """The checkpoint as a third layout loads it: straight, and after another layout has loaded and saved it."""
    Training(folder, OTHER).load(folder / "first").save(folder / "other")
    direct = Training(folder, THIRD).load(folder / "first").snapshot()
    detour = Training(folder, THIRD).load(folder / "other").snapshot()
    return {"layouts_agree": equal(direct, detour)}


def random_numbers() -> dict:
    """Numbers drawn on the NPU inside the tracker's states, twice from the same seed, and what it leaves untouched."""
    FIRST.start()
    tracker = get_cuda_rng_tracker()
    names = {"tensor": (), "expert": (get_expert_parallel_rng_tracker_name(),)}
    names["data"] = (get_data_parallel_rng_tracker_name(),)
    states = tracker.get_states(), torch.get_rng_state(), torch.npu.get_rng_state()
    draws = []
    for _ in range(2):
        tracker.set_states(dict(states[0]))
        drawn = {}
        for kind, name in names.items():
            with tracker.fork(*name):
                drawn[kind] = torch.rand(4, device="npu").tolist()
        draws.append(drawn)
    return {
        "place": (mpu.get_tensor_model_parallel_rank(), mpu.get_expert_model_parallel_rank()),
        "draws": draws[0],
        "repeatable": draws[0] == draws[1],
        "others_untouched": torch.equal(states[1], torch.get_rng_state())
        and torch.equal(states[2], torch.npu.get_rng_state()),
    }


def main(folder: Path):
    start_process_group()
    findings = resumed(folder) | under_another_layout(folder) | random_numbers()
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, findings)
    if dist.get_rank() == 0:
        torch.save(ranks, folder / "resume.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
