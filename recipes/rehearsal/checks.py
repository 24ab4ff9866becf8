"""What is checked at every rehearsal: pure functions from what was observed to a result with its problem row.

Tolerances are for bfloat16 and the toy's 320 words; what they were measured against stands beside them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from recipes.rehearsal.observations import Observations

Status = Literal["pass", "fail", "skip"]

# Mean absolute difference of log-probabilities. Two right bf16 implementations differ by 6e-3 to 8e-3 here; weights of
# the step before by 1e-1.
LOG_PROBS = 0.02


@dataclass(frozen=True)
class Result:
    """One check: what was found, with numbers; the problem row where it is a known one."""

    check: str
    status: Status
    message: str
    problem: str = ""


@dataclass(frozen=True)
class Rehearsed:
    """Everything that the checks look at."""

    first: Observations  # two steps from the start
    resumed: Observations  # the second of them again, from the first one's checkpoint
    model: dict[str, str] = field(default_factory=dict)  # tensor of the checkpoint on disk: fingerprint
    log_probs: dict[int, dict] = field(default_factory=dict)  # step: pair: difference
    causes: dict[str, tuple[str, str]] = field(default_factory=dict)  # run: its last error, and the problem row of it
    samples: int = 1
    graphs: bool = False
    fused_experts: bool = False
    few_ranks: bool = False  # engines spread experts over fewer ranks than MC2 takes
    stand_in: bool = False  # rollouts by a stand-in: nothing is said about vLLM


def results(rehearsed: Rehearsed) -> list[Result]:
    """All checks, in the order of a run."""
    return [result for check in CHECKS for result in check(rehearsed)]


def ran(seen: Rehearsed) -> Iterator[Result]:
    """Two steps were made."""
    done = [entry["step"] for entry in seen.first.steps]
    if "first" in seen.causes:
        text, problem = seen.causes["first"]
        yield Result("two steps", "fail", f"stopped after {len(done)} of 2 steps: {text}", problem)
    else:
        yield Result("two steps", "pass", "2 of 2")


def random_states(seen: Rehearsed) -> Iterator[Result]:
    """Rollout engines draw from different random states."""
    name = "noise of rollout engines"
    engines = seen.first.engines(1)
    if len(engines) < 2:
        yield Result(name, "skip", f"needs two engines, found {len(engines)}")
        return
    states = {entry["state"] for entry in engines}
    if len(states) < len(engines):
        yield Result(name, "fail", f"{len(engines)} engines, {len(states)} random state(s): the same noise", "F1")
    else:
        yield Result(name, "pass", f"{len(engines)} engines, {len(states)} random states")


def distinct_answers(seen: Rehearsed) -> Iterator[Result]:
    """The answers to a prompt differ from each other."""
    for step in (1, 2):
        groups = seen.first.groups(step)
        name = f"distinct answers, step {step}"
        if not groups or seen.samples == 1:
            yield Result(name, "skip", "no groups of answers")
            continue
        counts = [(len(set(answers)), len(answers)) for answers in groups.values()]
        worst, of = min(counts)
        status = "pass" if worst == of else "fail"
        yield Result(
            name, status, f"{worst} of {of} at the worst of {len(groups)} prompts", "" if worst == of else "F1"
        )


def transfer(seen: Rehearsed) -> Iterator[Result]:
    """The first weights that reach the rollout are the checkpoint's, bit for bit, on every rank."""
    name = "weights sent to the rollout"
    if not seen.first.sent or not seen.model:
        yield Result(name, "skip", "none were sent")
        return
    for rank, sent in sorted(seen.first.sent.items()):
        wrong = sorted(key for key in seen.model.keys() | sent.keys() if seen.model.get(key) != sent.get(key))
        if wrong:
            text = (
                f"rank {rank}: {len(wrong)} of {len(seen.model)} tensors differ from the checkpoint, {wrong[0]} first"
            )
            yield Result(name, "fail", text, "F7" if all("expert" in key for key in wrong) else "")
            return
    yield Result(
        name, "pass", f"{len(seen.model)} tensors bit-identical to the checkpoint on {len(seen.first.sent)} ranks"
    )


def finite(seen: Rehearsed) -> Iterator[Result]:
    """No metric is NaN or infinite, while freed memory is filled with NaN."""
    name = "finite numbers"
    wrong = {key for entry in seen.first.steps for key, value in entry.items() if not _finite(value)}
    if not seen.first.steps:
        yield Result(name, "skip", "no step was made")
    elif wrong:
        of_rollout = all(key.startswith("training/rollout") or key.startswith("mismatch") for key in wrong)
        yield Result(
            name, "fail", f"NaN or infinite: {', '.join(sorted(wrong))}", "F21" if of_rollout and seen.few_ranks else ""
        )
    else:
        yield Result(name, "pass", "all metrics; freed memory is poisoned")


def agreement(seen: Rehearsed) -> Iterator[Result]:
    """Trainer, rollout and Hugging Face's model give the same log-probabilities for the same tokens."""
    for step, pairs in sorted(seen.log_probs.items()):
        for pair, gap in sorted(pairs.items()):
            if "hf" in pair and step > 1:
                continue  # that model has the first step's weights
            message = f"mean {gap['mean']:.1e}, max {gap['max']:.1e} over {gap['tokens']} tokens"
            near = math.isfinite(gap["mean"]) and gap["mean"] < LOG_PROBS
            problem = "F21" if seen.few_ranks and not math.isfinite(gap["mean"]) else ""
            yield Result(f"log-probs {pair}, step {step}", "pass" if near else "fail", message, problem)
    if not seen.log_probs:
        yield Result("log-probs", "skip", "no step reached them")


def captures(seen: Rehearsed) -> Iterator[Result]:
    """Graph mode captured graphs: judged by vLLM's own counter, never by the log."""
    name = "graph captures"
    counts = [
        (trace.get("vllm") or {}).get("num_cudagraph_captured", 0) for trace in seen.first.traces if trace.get("vllm")
    ]
    if not seen.graphs or seen.stand_in or not counts:
        yield Result(name, "skip", "rollouts are eager" if not seen.graphs else "no rollout engine ran")
    elif max(counts) == 0:
        yield Result(name, "fail", "graph mode is asked for, 0 graphs were captured", "F4")
    else:
        yield Result(name, "pass", f"{max(counts)} a rank")


def storage_parts(seen: Rehearsed) -> Iterator[Result]:
    """Nothing was written into a part of a FRACTAL_NZ storage."""
    if not seen.first.traces:
        yield Result("NZ storages", "skip", "no device was used")
        return
    writes = sum(trace.get("nz_partial_writes") or 0 for trace in seen.first.traces)
    yield Result("NZ storages", "fail" if writes else "pass", f"{writes} writes into parts", "F11" if writes else "")


def order_on_streams(seen: Rehearsed) -> Iterator[Result]:
    """No memory was used on two streams without an order between them."""
    name = "order on streams"
    if not any("races" in trace for trace in seen.first.traces):
        yield Result(name, "skip", "no device was watched")
        return
    races = [race for trace in seen.first.traces for race in trace.get("races", ())]
    if not races:
        yield Result(name, "pass", "no use of memory that nothing orders")
        return
    one = races[0]
    pair = f"{one['second']['operator']} after {one['first']['operator']} ({one['kind']})"
    yield Result(name, "fail", f"{sum(race['count'] for race in races)} uses that nothing orders, {pair} first")


def fused_experts(seen: Rehearsed) -> Iterator[Result]:
    """The experts' SwiGLU is MindSpeed's operator in training, where the recipe asks for fused experts."""
    name = "fused SwiGLU in training"
    backward = sum(trace["operators"].get("npu_swiglu_backward", {}).get("backward", 0) for trace in seen.first.traces)
    if not seen.fused_experts or not seen.first.steps or not any(trace.get("patches") for trace in seen.first.traces):
        yield Result(name, "skip", "not asked for, or no MindSpeed here")
    elif backward:
        yield Result(name, "pass", f"{backward} backward calls")
    else:
        yield Result(name, "fail", "0 backward calls of npu_swiglu", "F6")


def resumes(seen: Rehearsed) -> Iterator[Result]:
    """The second step from the first one's checkpoint is the second step."""
    name = "save, resume, next step"
    if "resumed" in seen.causes:
        text, problem = seen.causes["resumed"]
        yield Result(name, "fail", f"the resumed run stopped: {text}", problem)
        return
    before, after = seen.first.numbers(2), seen.resumed.numbers(2)
    if not before or not after:
        yield Result(name, "skip", "no second step to compare")
        return
    moved = sorted(key for key in before.keys() & after.keys() if str(before[key]) != str(after[key]))
    if moved:
        key = moved[0]
        text = f"{len(moved)} of {len(before)} metrics differ, {key} first: {before[key]} and {after[key]}"
        yield Result(name, "fail", text)
    else:
        yield Result(name, "pass", f"all {len(before)} metrics of step 2 equal")
    yield from _same_checkpoint(seen)


def _same_checkpoint(seen: Rehearsed) -> Iterator[Result]:
    """What was saved after it, weights and optimizer states."""
    before, after = seen.first.checkpoint, seen.resumed.checkpoint
    if not before or not after:
        return
    name = "checkpoint after the resumed step"
    wrong = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if not wrong:
        yield Result(name, "pass", f"{len(before)} tensors bit-identical to the unbroken run's")
        return
    moments = any("exp_avg" in key for key in wrong)
    yield Result(
        name, "fail", f"{len(wrong)} of {len(before)} tensors differ, {wrong[0]} first", "F28" if moments else ""
    )


def _finite(value: object) -> bool:
    return not isinstance(value, str) and (not isinstance(value, float) or math.isfinite(value))


CHECKS: tuple[Callable[[Rehearsed], Iterator[Result]], ...] = (
    ran,
    transfer,
    random_states,
    distinct_answers,
    finite,
    agreement,
    captures,
    storage_parts,
    order_on_streams,
    fused_experts,
    resumes,
)
