"""Faults of the pinned commits that a recipe can run into, each with the patch or the setting that removes it."""

from collections.abc import Iterator
from math import gcd

from recipes.lint.facts import ACTOR, ROLLOUT, SIZES, Facts
from recipes.lint.rule import COMMERCIAL, Fault

MC2_RANKS = 16  # from which vllm-ascend uses it on an Atlas A2
INTERLEAVE = "VERL_ROLLOUT_INTERLEAVE"  # what the patch verl/batch-layout reads; 1 where it is not set


def distinct_answers(prompts: int, samples: int, engines: int, interleave: bool) -> int:
    """Distinct answers per prompt when every engine draws from the same random state; the worst prompt counts.

    An engine gets rows / engines rows in order. Engines whose rows are of the same prompts in the same places compute
    the same: copies of each other. Interleaved, row i is of prompt i // samples, so only engines inside one prompt's
    rows are alike. Copy by copy, row i is of prompt i % prompts: an engine starts at a multiple of its rows modulo
    prompts, and engines that start at the same prompt are alike.

    Checked against 2 engines, 4 prompts × 4 samples on CPU: 4 interleaved, 2 copy by copy.
    """
    rows = prompts * samples // engines
    if interleave:
        return samples if rows >= samples else rows + samples % rows
    return min(samples, rows // gcd(rows, prompts))


def equal_samples(facts: Facts) -> Iterator[Fault]:
    """Every rollout engine draws from the same random state, and several have rows of one prompt (F1).

    verl 21271aa, workers/megatron_workers.py:419-423 seeds one state for each engine, trainer_mode() at 448 overwrites
    it at 611. In the tree from 19020f618 until ef6eaa05d, so also in verl 0.6.0; 796871d seeds in its sharding manager.
    """
    if not _is_off(facts):
        yield from _copies(facts, SIZES["prompts"], "interleaved", "apply verl/rollout-seeds")


def copied_samples(facts: Facts) -> Iterator[Fault]:
    """The same with rows copy by copy: without verl/rollout-seeds nothing is learnt (F1).

    Nothing reads the setting but the patch verl/batch-layout, and patches are applied together: a warning.
    """
    if _is_off(facts):
        remedy = f"apply the patches, all of them; without verl/rollout-seeds leave {INTERLEAVE} at 1"
        yield from _copies(facts, f"launch.env.{INTERLEAVE}", "copy by copy (interleave off)", remedy)


def _is_off(facts: Facts) -> bool:
    return str(facts.env.get(INTERLEAVE, 1)) == "0"


def _copies(facts: Facts, key: str, order: str, remedy: str) -> Iterator[Fault]:
    found, layout, engine = facts.sizes("prompts", "samples"), facts.layout, facts.engine
    if not found or layout is None or not engine or facts.mode != "sync":
        return
    prompts, samples = found
    engines = layout.devices // engine
    if engines < 1 or layout.devices % engine or prompts * samples % engines or samples == 1:
        return
    distinct = distinct_answers(prompts, samples, engines, not _is_off(facts))
    if distinct < samples:
        yield Fault(
            key,
            f"answers per prompt, {prompts} prompts × {samples} {order} on {engines} engines: expected {samples} "
            f"distinct ones, found {distinct} without the patch verl/rollout-seeds, {samples} with it"
            + ("; all advantages are 0 and nothing is learnt" if distinct == 1 else ""),
            remedy,
        )


def resume(facts: Facts) -> Iterator[Fault]:
    """Resuming crashes: strict loading meets `_extra_state` keys that a hook of MindSpeed 35da6ac adds (F2).

    MindSpeedTELayerNormColumnParallelLinear has the hook and no set_extra_state. Seen on CPU at PP2.
    """
    every, mode = facts.size("trainer.save_freq"), facts.get("trainer.resume_mode")
    if every and mode != "disable":
        yield Fault(
            "trainer.resume_mode",
            f"checkpoints every {every} steps: expected to resume from them, found that strict loading fails on "
            "`…_extra_state`",
            "apply the patch mindspeed/extra-state before the first resume",
        )


def lost_moments(facts: Facts) -> Iterator[Fault]:
    """A resumed run starts with Adam's moments at zero while its step count goes on, without a message (F28).

    verl asks Megatron for what to load without saying that it loads (verl 21271aa, utils/checkpoint/
    megatron_checkpoint_manager.py:255, called at 298; 796871d: 251, 291). So core_v0.12.1 does not make the moments
    (core/optimizer/distrib_optimizer.py:1098) and lists none (1293). Mended by verl #3850, 2025-10-24. `rl_plugins`
    makes them first; it is written for verl 21271aa and 0.6.0.
    """
    key, mode = "actor_rollout_ref.model.external_lib", facts.get("trainer.resume_mode")
    contents = facts.get(f"{ACTOR}.checkpoint.load_contents")
    resumes = mode == "resume_path" or (mode != "disable" and facts.size("trainer.save_freq"))
    if not resumes or (isinstance(contents, list) and "optimizer" not in contents) or _has_plugins(facts.get(key)):
        return
    plugin = "" if facts.matrix == COMMERCIAL else f", or set {key} to rl_plugins with recipes/plugins on PYTHONPATH"
    yield Fault(
        key,
        "resuming: expected Adam's moments from the checkpoint, found that verl does not load them; they start from 0",
        f"apply the patch verl/resume-moments before the first resume{plugin}",
    )


def prefix_cache(facts: Facts) -> Iterator[Fault]:
    """A prefix-cache hit can ignore the cached prefix: wrong tokens, silently (F3).

    vllm-ascend 15b2e5c, worker/model_runner_v1.py:1218 before 1300; 81bd6e4c99, fixed by 4b3bd4f397.
    """
    key = f"{ROLLOUT}.enable_prefix_caching"
    if facts.is_on(key):
        yield Fault(
            key,
            f"{key}: expected false at vllm-ascend 15b2e5c, found true: a hit can ignore the cached prefix",
            "set it to false, or apply the patch vllm-ascend/attention-state",
        )


def dummy_compile(facts: Facts) -> Iterator[Fault]:
    """Graph mode captures nothing while MindSpeed's identity stands for torch.compile, and the log says it did (F4).

    MindSpeed 35da6ac and 1cdd0ab, features_manager/megatron_basic/requirements_basic.py:32. Counted on CPU: 0 captures
    against 20 a rank with the real one.
    """
    if facts.graphs:
        key = f"{ROLLOUT}.enforce_eager"
        yield Fault(
            key,
            f"{key}: false asks for graph mode; expected captures, found none while MindSpeed replaces torch.compile",
            "apply the patch verl/real-compile and look at the capture counters, not at the log",
        )


def gathered_experts(facts: Facts) -> Iterator[Fault]:
    """tp > 1 with ep 1 and expert tp 1: expert weights, which are replicated, are gathered over tp (F7).

    verl 21271aa, utils/megatron_utils.py:896 takes the other branch only with ep > 1, and so does 796871d: 887;
    gate_proj arrives with tp times its rows. `drifting_experts` is about the same layout.
    """
    layout, model = facts.layout, facts.model
    if layout and model and model.experts and layout.tp > 1 and layout.ep == 1 and layout.etp != layout.tp:
        yield Fault(
            SIZES["ep"],
            f"tp {layout.tp}, ep 1, expert tp {layout.etp}: expected ep above 1 or expert tp {layout.tp}; weights of "
            f"{layout.tp} times their rows would reach the rollout",
            f"set {SIZES['etp']} to {layout.tp} or raise ep; the patch verl/expert-gather mends this fault alone",
        )


def drifting_experts(facts: Facts) -> Iterator[Fault]:
    """The same layout: experts' gradients are not summed over tensor-parallel ranks, so their copies drift apart (F29).

    With ep 1 Megatron marks experts as dense (core_v0.12.1, core/transformer/moe/experts.py:210, tensor_parallel/
    layers.py:809; MindSpeed's TEGroupedLinear the same, te/pytorch/module/grouped_linear.py:126 at 35da6ac, 89 at
    1cdd0ab), so their gradients are reduced over copies of the model (core/distributed/distributed_data_parallel.py:99)
    and not over the ranks of tp, which have the same experts and other tokens; core/distributed/
    finalize_model_grads.py:189 sums norms alone.
    """
    layout, model = facts.layout, facts.model
    if layout and model and model.experts and layout.tp > 1 and layout.ep == 1 and layout.etp < layout.tp:
        yield Fault(
            SIZES["etp"],
            f"tp {layout.tp}, ep 1, expert tp {layout.etp}: expected ep above 1 or expert tp {layout.tp}, found copies "
            f"of the experts on {layout.tp // layout.etp} ranks of tp, whose gradients nobody sums",
            f"set {SIZES['etp']} to {layout.tp}, or raise ep",
        )


def guessed_layout(facts: Facts) -> Iterator[Fault]:
    """Reloaded experts are laid out by their shapes: two ratios of sizes are taken for the other layout (F10).

    vllm-ascend 15b2e5c, ops/common_fused_moe.py, transpose_weight: hidden == 2 × width of the expert's part, or equal
    to it. Without expert parallelism the width is cut by tp.
    """
    model, tp = facts.model, facts.size("rollout_tp")
    if model is None or not model.experts or not tp:
        return
    width = model.expert_width if facts.engine_ep > 1 else model.expert_width // tp
    if model.hidden in (width, 2 * width):
        yield Fault(
            SIZES["rollout_tp"],
            f"hidden {model.hidden} against {width}, an expert's width on a rank: expected neither equal nor twice it; "
            "reloaded weights would be wrong without an error",
            f"change {SIZES['rollout_tp']} or the expert parallelism, or apply the patch vllm-ascend/moe-layout",
        )


def first_rank_metrics(facts: Facts) -> Iterator[Fault]:
    """actor/* metrics are those of the first copy of the model only (F15: verl 796871d, protocol.py, concat)."""
    layout = facts.layout
    if layout and layout.dp > 1:
        yield Fault(
            SIZES["nodes"],
            f"actor/* metrics: expected over {layout.dp} copies of the model, found those of the first one",
            "do not compare them across matrices, or apply the patch verl/metrics-all-ranks",
        )


def implied_expert_tp(facts: Facts) -> Iterator[Fault]:
    """Expert tp that is null means tp, in both matrices; left out it is tp at 796871d and 1 at 21271aa (F24)."""
    key, tp = SIZES["etp"], facts.size("tp")
    if facts.get(key) is None and tp and tp > 1 and facts.model and facts.model.experts:
        yield Fault(key, f"{key}: expected a number, found null, for which Megatron takes tp {tp}", f"write {tp} or 1")


def masked_ids(facts: Facts) -> Iterator[Fault]:
    """Asynchronous only: probabilities of rollout and trainer are not comparable with sync's (F18).

    The async worker masks ids beyond the tokenizer.
    """
    if facts.mode == "async" and facts.is_on(f"{ROLLOUT}.calculate_log_probs"):
        yield Fault(
            f"{ROLLOUT}.calculate_log_probs",
            "rollout_probs_diff: async masks ids beyond the tokenizer, sync does not: an offset between the two",
            "do not compare the two modes by it",
        )


def unwritten_rows(facts: Facts) -> Iterator[Fault]:
    """Below 16 ranks tokens go to experts by all-gather: with fewer than two rows a rank reads an unwritten one (F21).

    vllm-ascend 15b2e5c, worker/model_runner_v1.py:1835, ops/moe/token_dispatcher.py:389: row 1 times 0, which is NaN
    where the memory happens to hold NaN. Seen on CPU with poisoned memory; whether on a device is not known.
    """
    model, ranks = facts.model, facts.engine_ep
    if model and model.experts and 1 < ranks < MC2_RANKS:
        yield Fault(
            SIZES["rollout_tp"],
            f"experts on {ranks} ranks: expected at least {MC2_RANKS} (MC2), or two rows on each rank at any time; the "
            f"last sequence of a batch has {model.active} rows for {ranks} ranks: one with fewer than two may give NaN",
            "look at the first answers that end last on a device; poisoned memory on the emulated NPU shows it",
        )


def logged_entropy(facts: Facts) -> Iterator[Fault]:
    """Old log-probs compute the entropy, too, 16 bytes a token × vocabulary / tp on the last stage (F22).

    verl 21271aa, workers/megatron_workers.py:746, and 796871d: 692 hard-code calculate_entropy=True; 6 bytes without.
    """
    layout, model = facts.layout, facts.model
    budget = facts.size(f"{ROLLOUT}.log_prob_max_token_len_per_gpu")
    if not (layout and model and budget) or not facts.is_on(f"{ROLLOUT}.log_prob_use_dynamic_bsz"):
        return
    each = model.vocabulary / layout.tp * budget / 2**30
    if each * 10 >= 1:
        yield Fault(
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
            f"logits of old log-probs: {budget} tokens × {model.vocabulary} / tp {layout.tp} × 16 B = {16 * each:.1f} "
            f"GiB, of which {10 * each:.1f} GiB are for an entropy that is only logged",
            "the patch verl/log-prob-entropy saves them",
        )


def _has_plugins(given: object) -> bool:
    """Whether model.external_lib, a name or a list of names, loads our plugins."""
    return any(str(name).split(".")[0] == "rl_plugins" for name in (given if isinstance(given, list) else [given]))
