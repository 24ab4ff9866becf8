"""Stops a run whose first batch holds answers that are copies of each other.

Rollout ranks that share their random state give the same prompt the same answer. All advantages are then 0, nothing is
learnt, and no error says so. VERL_DISTINCT_ANSWERS=0 leaves this check out.
"""

import os
from collections import defaultdict

LONG = 16  # response tokens from which on two equal answers are no coincidence
SHARE = 0.5  # of the long answers that must have a twin before the run is stopped

_checked = False


def check(batch, rollout) -> None:
    """Counts the distinct answers of each prompt in the first batch.

    batch: DataProto with `uid` [rows] and `responses`, `attention_mask` [rows, tokens]. rollout: its configuration.
    Raises RuntimeError where more than half of the long answers have a twin.
    """
    global _checked
    if _checked or rollout.n < 2 or not rollout.get("temperature", 1.0) or not rollout.get("do_sample", True):
        return
    _checked = True
    distinct, twins, long = count(batch)
    found = f"{distinct:.2f} distinct ones per prompt; {twins} of {long} answers of {LONG} tokens or more have a twin"
    print(f"answers to one prompt, first batch: {rollout.n} sampled, {found}")
    if long and twins > SHARE * long and os.environ.get("VERL_DISTINCT_ANSWERS", "1") != "0":
        raise RuntimeError(
            f"answers to one prompt: expected {rollout.n} that differ, found {found}. Rollout ranks draw from the same "
            "random state: apply the patch verl/rollout-seeds, or, where equal answers are expected, set "
            "VERL_DISTINCT_ANSWERS=0"
        )


def count(batch) -> tuple[float, int, int]:
    """Distinct answers per prompt on average; long answers that have a twin; long answers."""
    responses = batch.batch["responses"].cpu()
    lengths = batch.batch["attention_mask"][:, -responses.shape[1] :].sum(-1).tolist()
    groups = defaultdict(lambda: defaultdict(int))
    for uid, row, length in zip(batch.non_tensor_batch["uid"], responses.numpy(), lengths, strict=True):
        groups[uid][row[: int(length)].tobytes()] += 1
    size = responses.element_size() * LONG
    answers = [(text, times) for group in groups.values() for text, times in group.items() if len(text) >= size]
    twins = sum(times for _, times in answers if times > 1)
    return sum(map(len, groups.values())) / len(groups), twins, sum(times for _, times in answers)
