"""Samples of a step against what they are dealt out to: devices, engines, copies of the model, mini-batches.

N devices, B prompts × n samples, m prompts a mini-batch, dp = N / (tp pp cp).
"""

from collections.abc import Iterator

from recipes.lint.facts import ACTOR, REF, ROLLOUT, SIZES, Facts
from recipes.lint.rule import Fault

DYNAMIC = f"{ACTOR}.use_dynamic_bsz"
CHANGE = f"change {SIZES['prompts']}, {SIZES['samples']} or the number of nodes"


def devices(facts: Facts) -> Iterator[Fault]:
    """(B n) % N == 0 and B n >= N.

    balance_batch deals rows out to all devices, not to copies of the model (verl 21271aa,
    trainer/ppo/ray_trainer.py:910 and utils/seqlen_balancing.py:103, 177; 796871d the same at 102, 176). At 796871d
    generation does so too (single_controller/base/decorator.py, DP_COMPUTE_PROTO over the world).
    """
    layout, rows = facts.layout, facts.rows
    if layout and rows and _dealt_to_devices(facts) and rows % layout.devices:
        yield _rest(facts, layout.devices, "devices")


def engines(facts: Facts) -> Iterator[Fault]:
    """(B n) % (N / engine) == 0: generation deals rows out to engines.

    verl 21271aa, workers/megatron_workers.py:657, a dispatch over the mesh "rollout".
    """
    layout, rows, engine = facts.layout, facts.rows, facts.engine
    if not (layout and rows and engine) or _dealt_to_devices(facts) or facts.mode == "async":
        return
    count = layout.devices // engine
    if count and layout.devices % engine == 0 and rows % count:
        yield _rest(facts, count, "rollout engines")


def copies(facts: Facts) -> Iterator[Fault]:
    """(B n) % dp == 0: log-probs and updates deal rows out to copies of the model (verl, protocol.py:762 and 881)."""
    layout, rows = facts.layout, facts.rows
    if not (layout and rows and layout.dp) or _dealt_to_devices(facts) or not facts.is_on(DYNAMIC):
        return
    if layout.devices % layout.model == 0 and rows % layout.dp:
        yield _rest(facts, layout.dp, "copies of the model")


def micro(facts: Facts) -> Iterator[Fault]:
    """(B n) % (dp u) == 0, u the micro-batch.

    verl 796871d, trainer/ppo/ray_trainer.py:411, always; 21271aa, utils/config.py:109, without dynamic batch sizes.
    """
    layout, rows, size = facts.layout, facts.rows, facts.size("micro")
    if not (layout and rows and size and layout.dp) or layout.devices % layout.model or not _counts_micro(facts):
        return
    least = layout.dp * size
    dealt_out = rows % layout.devices == 0 or not _dealt_to_devices(facts)  # else `devices` has reported it
    if dealt_out and rows % least:
        yield Fault(
            SIZES["micro"],
            f"{_shown(facts)}: expected a multiple of dp {layout.dp} × micro-batch {size} = {least}, found a rest of "
            f"{rows % least}",
            f"lower {SIZES['micro']}, or change the batch",
        )


def micro_given(facts: Facts) -> Iterator[Fault]:
    """A micro-batch size is there, and only one of its two keys.

    verl 21271aa, workers/config/actor.py:128-139, without dynamic batch sizes. 796871d multiplies by the one per device
    always (trainer/ppo/ray_trainer.py:405: TypeError where it is null).
    """
    key, old = SIZES["micro"], f"{ACTOR}.ppo_micro_batch_size"
    per_gpu, whole, dynamic = facts.get(key), facts.get(old), facts.is_on(DYNAMIC)
    if facts.matrix == "commercial" and per_gpu is None:
        yield Fault(key, f"{key}: expected a number even with dynamic batch sizes, found null", "set it to 1")
    elif not dynamic and per_gpu is None and whole is None:
        yield Fault(key, f"{key}: expected a number without {DYNAMIC}, found null", f"set it, or {DYNAMIC} to true")
    elif not dynamic and per_gpu is not None and whole is not None:
        yield Fault(old, f"{old}: expected null beside {key}, found {whole}", "set it to null: it is deprecated")


def mini(facts: Facts) -> Iterator[Fault]:
    """B >= m without dynamic batch sizes (verl 21271aa, workers/config/actor.py:153; 796871d: 141); else `whole` fails.

    A mini-batch above the batch leaves no whole mini-batch on any copy, so it is refused in both cases.
    """
    found = facts.sizes("prompts", "mini")
    if found and found[1] > found[0]:
        yield Fault(
            SIZES["mini"],
            f"{SIZES['mini']}: expected at most {SIZES['prompts']}, {found[0]}, found {found[1]}",
            "lower it to that number",
        )


def whole(facts: Facts) -> Iterator[Fault]:
    """A copy's rows divide into whole mini-batches: (B n / dp) % ((m n) // dp) == 0, and the latter is at least 1.

    verl 21271aa, workers/megatron_workers.py:266 floors it, protocol.py:823 asserts (796871d: 227, protocol.py:704).
    """
    found = _mini_batch(facts)
    if not found:
        return
    rows, floored, _ = found
    if floored < 1 or rows % floored:
        yield Fault(
            SIZES["mini"],
            f"{rows} samples a copy (B n / dp): expected a multiple of its mini-batch (m n) // dp = {floored}"
            + (f", found a rest of {rows % floored}" if floored else ", found 0"),
            f"make {SIZES['mini']} a divisor of {SIZES['prompts']} with m × n a multiple of dp",
        )


def floored(facts: Facts) -> Iterator[Fault]:
    """(m n) % dp == 0, or the floor above makes the mini-batch another one than asked for, silently."""
    found = _mini_batch(facts)
    if not found:
        return
    rows, size, rest = found
    if rest and size and rows % size == 0:
        yield Fault(
            SIZES["mini"],
            f"{SIZES['mini']} × n: expected a multiple of dp, found a rest of {rest}; the floor makes it {size} "
            f"samples a copy, so {rows // size} optimizer steps a batch",
            f"change {SIZES['mini']} so that m × n divides by dp",
        )


def virtual(facts: Facts) -> Iterator[Fault]:
    """With virtual stages and dynamic batch sizes micro-batches come in groups of pp: a mini-batch has that many rows.

    verl 21271aa, workers/actor/megatron_actor.py:383, utils/seqlen_balancing.py:299-302.
    """
    found, pp = _mini_batch(facts), facts.size("pp")
    if found and pp and pp > 1 and (facts.size("vpp") or 1) > 1 and facts.is_on(DYNAMIC) and 0 < found[1] < pp:
        yield Fault(
            SIZES["vpp"],
            f"{SIZES['vpp']}: expected mini-batches of at least pp {pp} samples a copy, found {found[1]}",
            "raise the mini-batch or leave virtual stages off",
        )


def log_prob_micro(facts: Facts) -> Iterator[Fault]:
    """Log-prob micro-batches: one of the two keys is set, and not both, without dynamic batch sizes.

    verl 21271aa, utils/config.py:117-168; 796871d, trainer/ppo/ray_trainer.py:457-471. With dynamic batch sizes the
    reference worker still asserts its own (21271aa, workers/megatron_workers.py:282; 796871d: 243), and 796871d's actor
    asserts the rollout's (workers/actor/megatron_actor.py:185).
    """
    dynamic = facts.is_on(DYNAMIC)
    for section in (ROLLOUT, REF):
        if section == REF and not facts.has_reference:
            continue
        whole, per_gpu = (f"{section}.log_prob_micro_batch_size{end}" for end in ("", "_per_gpu"))
        needed = not dynamic or section == REF or facts.matrix == "commercial"
        if section == ROLLOUT and dynamic and not facts.is_on(f"{ROLLOUT}.log_prob_use_dynamic_bsz"):
            needed = True  # 21271aa, megatron_actor.py:193
        if needed and facts.get(whole) is None and facts.get(per_gpu) is None:
            yield Fault(per_gpu, f"{per_gpu}: expected a number, found null", "set it to 1")
        elif not dynamic and facts.get(whole) is not None and facts.get(per_gpu) is not None:
            yield Fault(whole, f"{whole}: expected null beside {per_gpu}, found {facts.shown(whole)}", "set it to null")


def agent_workers(facts: Facts) -> Iterator[Fault]:
    """Asynchronous: (B n) % agent.num_workers == 0.

    verl 21271aa, experimental/agent_loop/agent_loop.py:853; 796871d: 535.
    """
    rows, workers = facts.rows, facts.size("workers")
    if facts.mode == "async" and rows and workers and rows % workers:
        yield Fault(
            SIZES["workers"],
            f"{_shown(facts)}: expected a multiple of {SIZES['workers']}, {workers}, found a rest of {rows % workers}",
            f"set {SIZES['workers']} to a divisor",
        )


def load_weight(facts: Facts) -> Iterator[Fault]:
    """Actor and reference both load weights (verl 21271aa, workers/megatron_workers.py:358; 796871d: 315)."""
    actor, ref = f"{ACTOR}.load_weight", f"{REF}.load_weight"
    if facts.has_reference and facts.is_on(ref) and not facts.is_on(actor):
        yield Fault(ref, f"{ref}: expected {actor}'s {facts.shown(actor)}, found true", "set both to true")


def strategies(facts: Facts) -> Iterator[Fault]:
    """Actor and critic have the same strategy, also where no critic is trained.

    verl 796871d, trainer/main_ppo.py:156; 21271aa does not ask.
    """
    actor, critic = facts.get(f"{ACTOR}.strategy"), facts.get("critic.strategy")
    if actor != critic:
        yield Fault(
            "critic.strategy",
            f"critic.strategy: expected {ACTOR}'s {actor!r}, found {critic!r}",
            "leave it out: ppo_megatron_trainer sets both",
        )


def data(facts: Facts) -> Iterator[Fault]:
    """The training files hold at least one batch: verl drops a part of one and asserts that a batch is left.

    verl 21271aa, trainer/ppo/ray_trainer.py:372-374 and 392; 796871d: 530-532 and 550. Prompts that
    filter_overlong_prompts takes out are not looked at.
    """
    key = "data.gen_batch_size" if facts.size("data.gen_batch_size") else SIZES["prompts"]
    size = facts.size(key)
    if facts.training_rows is not None and size and facts.training_rows < size:
        yield Fault(
            key,
            f"{key}: expected at most the {facts.training_rows} rows of data.train_files, found {size}: no whole batch",
            "lower it, or add data",
        )


def temperature(facts: Facts) -> Iterator[Fault]:
    """Validation that samples needs a temperature above 0 (verl 21271aa, utils/config.py:192; 796871d: 495)."""
    key = f"{ROLLOUT}.temperature"
    value = facts.get(key)
    if facts.is_on(f"{ROLLOUT}.val_kwargs.do_sample") and isinstance(value, int | float) and value <= 0:
        yield Fault(key, f"{key}: expected above 0 with val_kwargs.do_sample, found {value}", "raise it")


def _dealt_to_devices(facts: Facts) -> bool:
    return facts.matrix == "commercial" or facts.is_on("trainer.balance_batch")


def _counts_micro(facts: Facts) -> bool:
    return facts.matrix == "commercial" or not facts.is_on(DYNAMIC)


def _mini_batch(facts: Facts) -> tuple[int, int, int] | None:
    """Rows of a copy, rows of its mini-batch, and the rest that the floor drops; None where others have complained."""
    layout, rows, found = facts.layout, facts.rows, facts.sizes("prompts", "samples", "mini")
    if not (layout and rows and found and layout.dp) or layout.devices % layout.model or rows % layout.dp:
        return None
    prompts, samples, size = found
    if size > prompts:
        return None
    return rows // layout.dp, size * samples // layout.dp, size * samples % layout.dp


def _rest(facts: Facts, count: int, receivers: str) -> Fault:
    """Rows that cannot be dealt out evenly to `count` receivers."""
    return Fault(
        SIZES["prompts"],
        f"{_shown(facts)}: expected a multiple of the {count} {receivers}, found a rest of {facts.rows % count}",
        CHANGE,
    )


def _shown(facts: Facts) -> str:
    return f"{SIZES['prompts']} {facts.size('prompts')} × n {facts.size('samples')} = {facts.rows}"
