"""The first weights that the trainer sends to the rollout, tensor by tensor."""

import functools
import importlib

from verl.utils import megatron_utils

from rl_probes import journal

USERS = ("verl.workers.megatron_workers", "verl.workers.sharding_manager.megatron_vllm")


def install() -> None:
    """Wraps the generator of Hugging Face's tensors under every name by which workers call it."""
    observed = _observed(megatron_utils.per_tensor_generator)
    megatron_utils.per_tensor_generator = observed
    for name in USERS:
        try:
            module = importlib.import_module(name)
        except ImportError:  # the other commit's place, or its rollout's packages are not there
            continue
        if hasattr(module, "per_tensor_generator"):
            module.per_tensor_generator = observed


def _observed(per_tensor_generator):
    calls = []

    @functools.wraps(per_tensor_generator)
    def generate(*arguments, **named):
        calls.append(None)
        first = len(calls) == 1
        for name, tensor in per_tensor_generator(*arguments, **named):
            if first:
                entry = {"name": name, "dtype": str(tensor.dtype), "shape": list(tensor.shape)}
                journal.write("transfer", {**entry, "sha256": journal.fingerprint(tensor)})
            yield name, tensor

    return generate
