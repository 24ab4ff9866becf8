"""What a rehearsal's tensors say; a process of its own, because it needs torch: `python -m recipes.rehearsal.tensors`

    log-probs MODEL FOLDER STEP   trainer and rollout against Hugging Face's model on the same tokens
    checkpoint FOLDER             a fingerprint for each tensor of a distributed checkpoint

One JSON document on the last line of standard output.
"""

import hashlib
import importlib
import json
import sys
from pathlib import Path

import torch

from recipes import toy
from recipes.compose import HOME


def log_probs(model: Path, folder: Path, step: int) -> dict[str, dict[str, float]]:
    """Mean and largest absolute difference over all response tokens of a step: each of the three pairs that exist.

    Hugging Face's model is the one on disk, so its pairs mean something for the first step only.
    """
    rows = _rows(folder, step)
    found = {"hf": _reference(model, rows), "trainer": rows["old_log_probs"], "rollout": rows.get("rollout_log_probs")}
    mask = rows["response_mask"].bool()
    pairs = (("trainer", "hf"), ("rollout", "hf"), ("rollout", "trainer"))
    return {
        f"{one}-{other}": _difference(found[one], found[other], mask)
        for one, other in pairs
        if found[one] is not None and found[other] is not None
    }


def checkpoint(folder: Path) -> dict[str, str]:
    """Fingerprints of the tensors of a checkpoint in Megatron's distributed format (torch_dist)."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict = {}
    _load_state_dict(state, FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return {name: _fingerprint(value) for name, value in _flat(state) if isinstance(value, torch.Tensor)}


def _flat(state: dict, prefix: str = ""):
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _fingerprint(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().view(torch.uint8).reshape(-1).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _rows(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """All ranks' rows of a step; ranks of one copy of the model saw the same ones, which count once."""
    parts = [torch.load(file, weights_only=True) for file in sorted(folder.glob(f"step{step}-rank*.pt"))]
    if not parts:
        raise SystemExit(f"expected log-probabilities of step {step} in {folder}, found none")
    rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    seen: dict[bytes, int] = {}
    for index, row in enumerate(rows["input_ids"]):
        seen.setdefault(row.numpy().tobytes() + rows["old_log_probs"][index].float().numpy().tobytes(), index)
    return {name: tensor[list(seen.values())] for name, tensor in rows.items()}


@torch.no_grad()
def _reference(model: Path, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    if module := toy.extension(json.loads((model / "config.json").read_text())):
        sys.path.insert(0, str(HOME / "recipes" / "plugins"))
        importlib.import_module(f"{module}_hf")
    loaded = AutoModelForCausalLM.from_pretrained(model, torch_dtype=torch.bfloat16, trust_remote_code=True).eval()
    width = rows["responses"].shape[1]
    found = []
    for tokens, mask in zip(rows["input_ids"], rows["attention_mask"], strict=True):
        real = mask.bool()
        logits = loaded(input_ids=tokens[real][None]).logits[0].float()
        log_probs = torch.log_softmax(logits[:-1], -1).gather(1, tokens[real][1:, None]).squeeze(1)
        full = torch.zeros(tokens.shape[0])
        full[torch.nonzero(real).squeeze(1)[1:]] = log_probs
        found.append(full[-width:])
    return torch.stack(found)


def _difference(one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    gap = (one.float() - other.float()).abs()[mask]
    return {"mean": float(gap.mean()), "max": float(gap.max()), "tokens": int(mask.sum())}


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "log-probs":
        answer = log_probs(Path(arguments[0]), Path(arguments[1]), int(arguments[2]))
    else:
        answer = checkpoint(Path(arguments[0]))
    print(json.dumps(answer))
