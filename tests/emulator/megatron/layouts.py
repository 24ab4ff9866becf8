"""Program, one process a rank: the tiny model under several parallel layouts; writes what the tests compare.

usage: layouts.py FOLDER LAYOUT...        (FOLDER as reference.py left it)
  LAYOUT            as tiny_trainer.Layout parses it; "summed" in it: expert gradients summed over the tensor ranks
  FOLDER/LAYOUT.pt  log_probs     of the following token, [sequences, length], whole batch
                    gradients     whole tensors by Megatron's names; the embedding's, a layer's, the experts'
                    weights       whole tensors as the layout saved them in a checkpoint
                    converted     verl's conversion to HF: "equal" or what differs; None where verl cannot (see below)
                    hf_gradients  the gradients by HF's names, where the layout is whole on each rank

Every data-parallel rank takes its share of the sequences, so ranks of an expert group see different tokens.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from safetensors.torch import load_file
from tiny_trainer import Layout, Trainer, gather_log_probs, start_process_group
from verl.models.mcore import get_mcore_weight_converter
from verl.utils.megatron_utils import per_tensor_generator

WHOLE = Layout()
NAME_PARTS = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}


def sharded_gradients(module) -> dict:
    """The model's sharded state with the gradients in place of the weights."""
    state = module.sharded_state_dict()
    gradients = {name: parameter.main_grad for name, parameter in module.named_parameters()}
    for name, gradient in gradients.items():
        state[name].data = gradient.detach()
    return {name: state[name] for name in gradients}


def sharded_weights(module) -> dict:
    """The model's sharded state without the empty extra states."""
    state = module.sharded_state_dict()
    return {name: state[name] for name, _ in module.named_parameters()}


def to_hf(trainer: Trainer) -> dict:
    """The parameters as verl sends them to the rollout, by HF's names; every rank gets all of them."""
    converter = get_mcore_weight_converter(trainer.hf_config, trainer.layout.dtype)
    tensors = per_tensor_generator(trainer.chunks, trainer.hf_config, converter, trainer.config, NAME_PARTS)
    return {name: tensor.float().cpu() for name, tensor in tensors}


def compare(found: dict, expected: dict) -> str:
    """ "equal", or which names are missing, surplus or different."""
    if found.keys() != expected.keys():
        return f"missing {expected.keys() - found.keys()}, surplus {found.keys() - expected.keys()}"
    different = [name for name in found if not torch.equal(found[name], expected[name].float())]
    return f"different: {different}" if different else "equal"


def converted(trainer: Trainer) -> str | None:
    """None for replicated experts under tensor parallelism: verl 0.6.0 gathers them as if they were split."""
    if trainer.layout.tp > 1 and trainer.layout.ep == trainer.layout.etp == 1:
        return None
    return compare(to_hf(trainer), load_file(trainer.folder / "hf" / "model.safetensors"))


def gradients_by_hf_names(trainer: Trainer) -> dict:
    """The gradients through verl's conversion, in place of the weights; the weights are lost."""
    for parameter in trainer.module.parameters():
        parameter.data.copy_(parameter.main_grad)
    return to_hf(trainer)


def sum_over_tensor_ranks(trainer: Trainer):
    """The reduction that Megatron lacks for replicated experts under tensor parallelism."""
    for name, parameter in trainer.module.named_parameters():
        if ".experts." in name:
            dist.all_reduce(parameter.main_grad, group=mpu.get_tensor_model_parallel_group())


def run(folder: Path, name: str) -> dict:
    """Trains one step and saves gradients and weights as distributed checkpoints."""
    trainer = Trainer(folder, Layout.parse(name))
    result = {"log_probs": gather_log_probs(trainer.forward_backward())}
    if "summed" in name:
        sum_over_tensor_ranks(trainer)
    for kind, state in (("gradients", sharded_gradients), ("weights", sharded_weights)):
        (folder / name / kind).mkdir(parents=True, exist_ok=True)
        dist_checkpointing.save(state(trainer.module), str(folder / name / kind))
    result["converted"] = converted(trainer)
    if trainer.layout == WHOLE:
        result["hf_gradients"] = gradients_by_hf_names(trainer)
    return result


def write_whole(folder: Path, results: dict):
    """Adds each layout's gradients and weights, loaded into a model that lies whole on every rank, and writes all."""
    trainer = Trainer(folder, WHOLE)
    for name, result in results.items():
        for kind, state in (("gradients", sharded_gradients), ("weights", sharded_weights)):
            loaded = dist_checkpointing.load(state(trainer.module), str(folder / name / kind))
            result[kind] = {key: tensor.float().cpu() for key, tensor in loaded.items()}
        if dist.get_rank() == 0:
            torch.save(result, folder / f"{name}.pt")


def main(folder: Path, names: list[str]):
    start_process_group()
    write_whole(folder, {name: run(folder, name) for name in names})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
