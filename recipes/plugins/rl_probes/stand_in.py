"""A rollout by Hugging Face's generate, for a matrix whose vLLM cannot be had: verl 796871d, `RL_PROBES_ROLLOUT=hf`.

It keeps a model of its own and takes the trainer's weights over verl's own generator of tensors, as vLLM does, so that
the trainer's side runs in full. It says nothing about vLLM.
"""

import copy

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl import DataProto
from verl.models.mcore import get_mcore_weight_converter
from verl.utils import megatron_utils
from verl.utils.device import get_device_name, get_torch_device
from verl.utils.torch_functional import get_response_mask
from verl.workers.megatron_workers import ActorRolloutRefWorker

LAYERS = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
SEED = 1000  # what verl adds to the rank of a rollout


def install() -> None:
    """Puts the stand-in where verl builds its rollout."""
    ActorRolloutRefWorker._build_rollout = _build


def _build(worker, trust_remote_code=False):
    rollout = Rollout(worker)
    return rollout, Sharding(worker, rollout)


class Rollout:
    """Generates this rank's rows with a model of its own."""

    def __init__(self, worker):
        self.config = worker.config.rollout
        config = copy.deepcopy(worker.hf_config)
        config._attn_implementation = "sdpa"
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
        self.model = model.to(get_device_name()).eval()

    def load_weights(self, weights) -> None:
        """Takes every tensor; KeyError for one that the model has not, RuntimeError for one that did not come."""
        own = dict(self.model.named_parameters())
        for name, tensor in weights:
            own.pop(name).data.copy_(tensor)
        if own:
            raise RuntimeError(f"expected all weights from the trainer, {len(own)} did not come: {sorted(own)[:3]}")

    @torch.no_grad()
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """verl's batch of prompts [B, P] -> with responses [B, R], masks, positions and their log-probabilities."""
        asked, meta = prompts.batch, prompts.meta_info
        length, width = self.config.response_length, asked["input_ids"].shape[1]
        made = self.model.generate(
            input_ids=asked["input_ids"],
            attention_mask=asked["attention_mask"],
            max_new_tokens=length,
            eos_token_id=meta["eos_token_id"],
            pad_token_id=meta["pad_token_id"],
            do_sample=meta.get("do_sample", True),
            temperature=self.config.temperature,
            top_k=0,
            top_p=1.0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        responses = _padded(made.sequences[:, width:], length, meta["pad_token_id"])
        chosen = torch.stack(made.logits, 1).float().log_softmax(-1)
        log_probs = chosen.gather(2, responses[:, : chosen.shape[1], None]).squeeze(2)
        mask = get_response_mask(responses, eos_token=meta["eos_token_id"], dtype=asked["attention_mask"].dtype)
        later = asked["position_ids"][:, -1:] + torch.arange(1, length + 1, device=responses.device)
        batch = {
            "prompts": asked["input_ids"],
            "responses": responses,
            "input_ids": torch.cat([asked["input_ids"], responses], -1),
            "attention_mask": torch.cat([asked["attention_mask"], mask], -1),
            "position_ids": torch.cat([asked["position_ids"], later], -1),
        }
        if self.config.calculate_log_probs:
            batch["rollout_log_probs"] = _padded(log_probs, length, -1.0)
        return DataProto(TensorDict(batch, batch_size=len(responses)), prompts.non_tensor_batch)


class Sharding:
    """The way of the weights and of the random state, as verl's manager for vLLM has it."""

    def __init__(self, worker, rollout: Rollout):
        self.worker, self.rollout, self.timing = worker, rollout, {}
        self.converter = get_mcore_weight_converter(worker.actor_model_config, worker.dtype)
        device = get_torch_device()
        trainer = device.get_rng_state()
        device.manual_seed(SEED + torch.distributed.get_rank())
        self.gen_random_states = device.get_rng_state()
        device.set_rng_state(trainer)

    def __enter__(self):
        worker, modules = self.worker, self.worker.actor.actor_module
        if worker._is_offload_param:
            megatron_utils.load_megatron_model_to_gpu(modules, load_grad=False)
        self.rollout.load_weights(
            megatron_utils.per_tensor_generator(
                modules, worker.actor_model_config, self.converter, worker.tf_config, LAYERS
            )
        )
        if worker._is_offload_param:
            megatron_utils.offload_megatron_model_to_cpu(modules)
        self.trainer_state = get_torch_device().get_rng_state()
        get_torch_device().set_rng_state(self.gen_random_states)

    def __exit__(self, *_):
        for module in self.worker.actor.actor_module:
            module.train()
        self.gen_random_states = get_torch_device().get_rng_state()
        get_torch_device().set_rng_state(self.trainer_state)

    def preprocess_data(self, data):
        return data

    def postprocess_data(self, data):
        return data


def _padded(rows: torch.Tensor, length: int, value: float) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, length - rows.shape[1]), value=value)
