"""Run by test_vllm_ascend without the emulator: a tiny Qwen3-MoE, new weights for it, and what transformers generates.

vllm_reference.py FOLDER writes into FOLDER: one_layer/ and model/ (two layers), new_weights.pt for the latter, and
expected.json with the prompts and the tokens "one_layer", "old" and "new".
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

PROMPTS = [
    list(range(40, 50)),
    list(range(60, 93)),
    [70, 71, 72],
    list(range(100, 240)),
]  # the last needs two cache blocks
TOKENS = 12


def make_model(layers):
    """hidden != 2 * moe_intermediate: vllm-ascend guesses the layout of expert weights from their shape."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=512,
        initializer_range=0.3,  # large enough that the tokens depend on the prompt
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen3MoeForCausalLM(config).eval()


def greedy(model):
    return [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=TOKENS,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]


def main(folder):
    one = make_model(layers=1)
    one.save_pretrained(folder / "one_layer")
    model = make_model(layers=2)
    model.save_pretrained(folder / "model")
    expected = {"prompts": PROMPTS, "one_layer": greedy(one), "old": greedy(model)}
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    torch.save(model.state_dict(), folder / "new_weights.pt")
    expected["new"] = greedy(model)
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
