"""Makes the toy model, its tokenizer and its dataset, from seeds and without any download.

Run as `python -m recipes.toy model|data OUT JSON`, in a process of its own because it imports torch and transformers.
"""

import importlib
import json
import random
import sys
from pathlib import Path

SEED = 0
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def extension(arguments: dict) -> str | None:
    """The module that makes the model's architecture known to the stack; with `_hf` at its end to transformers alone.

    None where transformers knows it.
    """
    return None if arguments.get("qk_norm", True) else "rl_models.no_qk_norm"


def make_tokenizer():
    """A byte-level tokenizer without merges: one token a byte, and Qwen's three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, *SPECIAL_TOKENS])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(folder: Path, arguments: dict) -> None:
    """Writes a random bf16 Qwen3-MoE and its tokenizer in Hugging Face's layout; `arguments` go to Qwen3MoeConfig."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    if module := extension(arguments):
        importlib.import_module(f"{module}_hf")
    tokenizer = make_tokenizer()
    config = Qwen3MoeConfig(
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=4096,
        rope_theta=1e6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        torch_dtype="bfloat16",
        **arguments,
    )
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    # transformers zeroes the padding row; once sampled, its RMS norm would amplify the gradient a thousandfold
    model.model.embed_tokens.weight.data[tokenizer.pad_token_id].normal_(0, config.initializer_range)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def make_data(folder: Path, sizes: dict) -> None:
    """Writes one parquet file a split, `sizes[split]` rows of verl's columns: sums of two digits."""
    import pandas

    source = random.Random(SEED)
    for split, rows in sizes.items():
        pandas.DataFrame([_row(source, split, index) for index in range(rows)]).to_parquet(folder / f"{split}.parquet")


def _row(source: random.Random, split: str, index: int) -> dict:
    left, right = source.randint(1, 9), source.randint(1, 9)
    return {
        "data_source": "toy/sum",
        "prompt": [{"role": "user", "content": f"{left}+{right}="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(left + right)},
        "extra_info": {"index": index, "split": split},
    }


MAKERS = {"model": make_model, "data": make_data}

if __name__ == "__main__":
    kind, out, arguments = sys.argv[1:]
    MAKERS[kind](Path(out), json.loads(arguments))
