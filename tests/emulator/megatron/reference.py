"""Program: writes a tiny Qwen3-MoE model, its Megatron checkpoint by verl's converter, and what plain HF computes.

usage: reference.py FOLDER
  FOLDER/hf        the model, bf16
  FOLDER/mcore     the distributed checkpoint
  FOLDER/batch.pt  left-padded token ids and mask, [sequences, length]
  FOLDER/hf.pt     float32 on the CPU: log_probs of the following token, [sequences, length], and gradients by name
"""

import sys
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

LENGTHS = (23, 9, 16, 30)
WIDTH = 32
VOCABULARY = 128


def tiny_model() -> Qwen3MoeForCausalLM:
    """Two layers, four experts of which two serve a token; 64 / 48 because 64 / 32 is ambiguous for vllm-ascend."""
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, moe_intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True, max_position_embeddings=64, rope_theta=1e4, tie_word_embeddings=False,
        initializer_range=0.1, pad_token_id=None, torch_dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones would hide a norm weight that is not used
            parameter.data.uniform_(0.5, 1.5)
        elif "gate.weight" in name:  # no near ties between experts: rounding must not choose another one
            parameter.data *= 8
    return model


def left_padded_batch() -> dict[str, torch.Tensor]:
    """Sequences of LENGTHS at the right end of WIDTH places, as verl's prompts and responses lie."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (len(LENGTHS), WIDTH), generator=generator)
    mask = torch.arange(WIDTH) >= WIDTH - torch.tensor(LENGTHS)[:, None]
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask}


def next_token_log_probs(model, batch) -> torch.Tensor:
    """[sequences, length]; entry t is the log-prob of token t + 1, the last one and padding are 0."""
    mask = batch["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(batch["input_ids"], attention_mask=mask.long(), position_ids=positions).logits
    log_probs = logits.log_softmax(-1)[:, :-1].gather(2, batch["input_ids"][:, 1:, None])[..., 0]
    return torch.nn.functional.pad(log_probs, (0, 1)) * mask


def main(folder: Path):
    batch = left_padded_batch()
    torch.save(batch, folder / "batch.pt")
    tiny_model().save_pretrained(folder / "hf")
    # loaded again: the conversion to bf16 has rounded the rotary frequencies of the model in memory
    model = Qwen3MoeForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
    log_probs = next_token_log_probs(model, batch)
    (-log_probs.sum() / batch["attention_mask"][:, :-1].sum()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.save({"log_probs": log_probs.detach(), "gradients": gradients}, folder / "hf.pt")
    # only now: verl replaces parts of the HF model by NPU operators when it is imported
    from scripts.converter_hf_to_mcore import convert_hf_to_mcore

    convert_hf_to_mcore(str(folder / "hf"), str(folder / "mcore"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
