"""Tiny language models with random weights, in Hugging Face's layout, that stand for models of the hub.

Run as `python -m emulator.peers.models ARCHITECTURE FOLDER`, in a process of its own because it imports transformers.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "initializer_range": 0.3,  # large enough that the tokens depend on the prompt
}


@functools.cache
def folder(architecture: str) -> Path:
    """The model's folder, made once a process; it goes with the process."""
    made = Path(_scratch().name) / architecture
    if not made.exists():
        command = [sys.executable, "-m", "emulator.peers.models", architecture, str(made)]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        subprocess.run(command, check=True, cwd=REPOSITORY, env=environment, capture_output=True)
    return made


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="peers-models-")


def make(architecture: str, target: Path) -> None:
    """Write model and tokenizer. architecture: Qwen2, Qwen3 or another that transformers has a causal model of."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**SIZES, torch_dtype="bfloat16")
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, len(_alphabet()), len(_alphabet())
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = config.eos_token_id
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    _tokenizer().save_pretrained(unfinished)
    unfinished.rename(target)


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _tokenizer():
    """One token a byte and one for the end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([*_alphabet(), "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
