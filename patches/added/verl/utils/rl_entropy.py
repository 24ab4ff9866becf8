"""Whether old log-probs come with their entropy: only where VERL_OLD_LOG_PROB_ENTROPY=1 asks for it."""

import os


def is_wanted() -> bool:
    return os.environ.get("VERL_OLD_LOG_PROB_ENTROPY", "0") == "1"


def tensors(entropys) -> dict:
    """The entropy [rows, tokens] as the trainer expects it, or nothing."""
    return {"entropys": entropys} if is_wanted() else {}
