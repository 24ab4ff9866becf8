"""The order of rows when each prompt is answered n times: one setting for prompts and responses, and a check.

VERL_ROLLOUT_INTERLEAVE=1 (or unset): the n rows of a prompt stand together. 0: copy by copy, so that every rollout rank
has a share of all prompts, long and short answers alike.
"""

import os
from collections import defaultdict

_checked = False


def interleave() -> bool:
    """Whether the rows of a prompt stand together."""
    given = os.environ.get("VERL_ROLLOUT_INTERLEAVE", "1")
    if given not in ("0", "1"):
        raise ValueError(f"VERL_ROLLOUT_INTERLEAVE: expected 0 or 1, found {given!r}")
    return given == "1"


def refuse_filter_groups(algorithm) -> None:
    """DAPO's filter_groups cuts the batch by rows, which is right only where a prompt's rows stand together."""
    if not interleave() and algorithm.get("filter_groups") and algorithm.filter_groups.enable:
        raise ValueError(
            "algorithm.filter_groups.enable with VERL_ROLLOUT_INTERLEAVE=0: expected rows of a prompt together, found "
            "them copy by copy, and filtering would cut groups; set VERL_ROLLOUT_INTERLEAVE=1"
        )


def check(batch) -> None:
    """Raises RuntimeError unless, in the first batch, rows of one uid have one prompt.

    batch: DataProto with `uid` [rows] beside what the rollout returned: `prompts` [rows, tokens], padded on the left,
    and `attention_mask` [rows, prompt and response tokens].
    """
    global _checked
    if _checked:
        return
    _checked = True
    if "prompts" not in batch.batch.keys():  # noqa: SIM118, a TensorDict has no `in`
        print("rows of prompts and responses are not checked: the rollout returned no prompts")
        return
    prompts = batch.batch["prompts"].cpu()
    lengths = batch.batch["attention_mask"][:, : prompts.shape[1]].sum(-1).tolist()
    found = defaultdict(set)
    for uid, row, length in zip(batch.non_tensor_batch["uid"], prompts.numpy(), lengths, strict=True):
        found[uid].add(row[len(row) - int(length) :].tobytes())
    mixed = sum(len(texts) > 1 for texts in found.values())
    if mixed:
        order = "interleaved" if interleave() else "copy by copy"
        raise RuntimeError(
            f"rows of prompts and responses: expected both {order} (VERL_ROLLOUT_INTERLEAVE), found {mixed} of "
            f"{len(found)} prompts whose answers belong to other prompts. One of the two repeats in the trainer has "
            "another order: see `invoke patches.list`; revert and apply verl/batch-layout"
        )
    print(f"rows of prompts and responses line up: {len(found)} prompts, {len(prompts)} rows")
