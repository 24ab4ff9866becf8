"""What a run's steps show when it goes wrong without an error: one small function a rule.

A rule looks at the steps of a run, in their order, and says with numbers what it saw, or None. Limits are wide on
purpose: a rule that speaks is to be believed. Names of metrics: verl 21271aa, trainer/ppo/metric_utils.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from checks.rows import Text

Steps = Sequence[dict]
FEW = 3  # steps at each end that are compared

SCORE, SCORES = "critic/score/mean", ("critic/score/max", "critic/score/min")
ADVANTAGES = ("critic/advantages/max", "critic/advantages/min")
GAP = "training/rollout_probs_diff_mean"
GRADIENT = "actor/grad_norm"
CLIPPED = "response_length/clip_ratio"
SLOWEST, FASTEST = "timing_s/generation_timing/max", "timing_s/generation_timing/min"
DEVICE, HOST = "perf/max_memory_reserved_gb", "perf/cpu_memory_used_gb"
WATCHED = frozenset(
    ("step", SCORE, *SCORES, *ADVANTAGES, GAP, GRADIENT, CLIPPED, SLOWEST, FASTEST, DEVICE, HOST, "timing_s/step")
)
VALIDATION = ("val-core/", "val-aux/")


@dataclass(frozen=True)
class Rule:
    """A rule, by the name that the table of problems calls it."""

    name: str
    look: Callable[[Steps], Text | None]


def is_watched(key: str) -> bool:
    """Whether a rule looks at this metric."""
    return key in WATCHED or key.startswith(VALIDATION)


def not_finite(steps: Steps) -> Text | None:
    """The first step with a metric that is NaN or infinite."""
    for step in steps:
        for key, value in step.items():
            if key.startswith(("actor/", "critic/")) and not math.isfinite(value):
                return _text(f"step {step['step']}: {key} is {value}", f"第 {step['step']} 步：{key} 为 {value}")
    return None


def no_reward(steps: Steps) -> Text | None:
    """Training scores far below those of validation, from the first steps on."""
    valid = [value for step in steps for key, value in step.items() if key.startswith("val-core/") and "mean" in key]
    scores = values(steps, SCORE)
    if not valid or len(scores) < FEW or not max(valid) > 0.05 or max(scores) > 0.1 * max(valid) or min(scores) < 0:
        return None
    best, trained = max(valid), max(scores)
    return _text(
        f"mean score in training at most {trained:.4g} over {len(scores)} steps, in validation up to {best:.4g}",
        f"{len(scores)} 步中训练的平均得分最高 {trained:.4g}，验证中最高 {best:.4g}",
    )


def reward_collapse(steps: Steps) -> Text | None:
    """The mean score of the last steps is under a fifth of the best before."""
    scores = values(steps, SCORE)
    if len(scores) < 2 * FEW:
        return None
    means = [mean(scores[start : start + FEW]) for start in range(len(scores) - FEW + 1)]
    best, last = max(means), means[-1]
    if best <= 0.01 or last > 0.2 * best:
        return None
    return _text(
        f"mean score of {FEW} steps: best {best:.4g}, last {last:.4g}",
        f"{FEW} 步平均得分：最高 {best:.4g}，最后 {last:.4g}",
    )


def no_advantage(steps: Steps) -> Text | None:
    """The last steps have no advantage other than 0."""
    last = _trained(steps)[-FEW:]
    if len(last) < FEW or any(abs(step[key]) > 1e-8 for step in last for key in ADVANTAGES):
        return None
    first, end = last[0]["step"], last[-1]["step"]
    return _text(f"steps {first} to {end}: all advantages are 0", f"第 {first} 至 {end} 步：优势全部为 0")


def equal_answers(steps: Steps) -> Text | None:
    """All advantages are 0 although scores are fractions and differ: the answers to a prompt are copies of each other.

    Scores of 0 and 1 say nothing: there a prompt can be too easy or too hard.
    """
    last = _trained(steps)[-FEW:]
    if not no_advantage(steps) or any(key not in step for step in last for key in SCORES):
        return None
    highest, lowest = ([step[key] for step in last] for key in SCORES)
    fractions = [value for value in (*highest, *lowest) if value != int(value)]
    if not fractions or any(high - low < 1e-6 for high, low in zip(highest, lowest, strict=True)):
        return None
    return _text(
        f"all advantages are 0 while scores lie between {min(lowest):.4g} and {max(highest):.4g}: "
        "each prompt got the same answer several times",
        f"优势全部为 0，而得分在 {min(lowest):.4g} 与 {max(highest):.4g} 之间：每个提示得到的是多份相同的回答",
    )


def probability_gap(steps: Steps) -> Text | None:
    """Mean difference of token probabilities, rollout against trainer: above 0.01 and doubled, or above 0.05."""
    gaps = [value for value in values(steps, GAP) if math.isfinite(value)]
    if len(gaps) < 2 * FEW:
        return None
    first, last = mean(gaps[:FEW]), mean(gaps[-FEW:])
    if not (last > 0.05 or (last > 0.01 and last > 2 * first)):
        return None
    return _text(
        f"{GAP}: {first:.4f} in the first steps, {last:.4f} in the last (below 0.005 is usual)",
        f"{GAP}：最初 {first:.4f}，最后 {last:.4f}（通常低于 0.005）",
    )


def vanishing_gradient(steps: Steps) -> Text | None:
    """Gradient norms of the last steps under 1e-6."""
    last = values(steps, GRADIENT)[-FEW:]
    if len(last) < FEW or not all(abs(norm) < 1e-6 for norm in last):
        return None
    return _text(
        f"{GRADIENT} of the last {FEW} steps at most {max(last):.2g}", f"最后 {FEW} 步 {GRADIENT} 最高 {max(last):.2g}"
    )


def exploding_gradient(steps: Steps) -> Text | None:
    """A gradient norm fifty times the median of the steps before it, and above 10."""
    for index in range(2 * FEW, len(norms := _pairs(steps, GRADIENT))):
        number, norm = norms[index]
        usual = median(value for _, value in norms[:index])
        if norm > 10 and norm > 50 * usual:
            return _text(
                f"step {number}: {GRADIENT} {norm:.4g}, median before {usual:.4g}",
                f"第 {number} 步：{GRADIENT} {norm:.4g}，此前中位数 {usual:.4g}",
            )
    return None


def clipped_answers(steps: Steps) -> Text | None:
    """Half of the answers of the last steps end at the length limit."""
    last = values(steps, CLIPPED)[-FEW:]
    if len(last) < FEW or min(last) < 0.5:
        return None
    return _text(
        f"{CLIPPED} of the last {FEW} steps: {mean(last):.0%} of the answers are cut off",
        f"最后 {FEW} 步 {CLIPPED}：{mean(last):.0%} 的回答被截断",
    )


def long_tail(steps: Steps) -> Text | None:
    """The slowest engine generates twice as long as the fastest, by a quarter of the step."""
    told = [step for step in steps if {SLOWEST, FASTEST, "timing_s/step"} <= step.keys()][-FEW:]
    if len(told) < FEW:
        return None
    slow, fast, whole = (mean(step[key] for step in told) for key in (SLOWEST, FASTEST, "timing_s/step"))
    if slow < 2 * fast or slow - fast < 0.25 * whole:
        return None
    return _text(
        f"generation of the last {FEW} steps: slowest engine {slow:.1f} s, fastest {fast:.1f} s, step {whole:.1f} s",
        f"最后 {FEW} 步的生成：最慢引擎 {slow:.1f} 秒，最快 {fast:.1f} 秒，整步 {whole:.1f} 秒",
    )


def memory_growth(steps: Steps) -> Text | None:
    """Reserved device memory still rises in each of the last steps, by a fiftieth in all."""
    return _growth(steps, DEVICE, 5, 1.02)


def host_memory_growth(steps: Steps) -> Text | None:
    """Used host memory rises in each of the last steps, by a tenth in all."""
    return _growth(steps, HOST, 8, 1.1)


RULES = (
    Rule("not-finite", not_finite),
    Rule("equal-answers", equal_answers),
    Rule("no-reward", no_reward),
    Rule("reward-collapse", reward_collapse),
    Rule("no-advantage", no_advantage),
    Rule("exploding-gradient", exploding_gradient),
    Rule("vanishing-gradient", vanishing_gradient),
    Rule("probability-gap", probability_gap),
    Rule("clipped-answers", clipped_answers),
    Rule("long-tail", long_tail),
    Rule("memory-growth", memory_growth),
    Rule("host-memory-growth", host_memory_growth),
)


def values(steps: Steps, key: str) -> list[float]:
    """A metric over the steps that have it and where it is finite."""
    return [value for _, value in _pairs(steps, key)]


def _pairs(steps: Steps, key: str) -> list[tuple[int, float]]:
    return [(step["step"], float(step[key])) for step in steps if key in step and math.isfinite(step[key])]


def _trained(steps: Steps) -> list[dict]:
    return [step for step in steps if all(math.isfinite(step.get(key, math.nan)) for key in ADVANTAGES)]


def _growth(steps: Steps, key: str, count: int, factor: float) -> Text | None:
    """A metric that rises in each of the last `count` steps, and by `factor` over them; the first steps warm up."""
    used = _pairs(steps, key)[FEW:][-count - 1 :]
    numbers = [value for _, value in used]
    rising = all(after > before for before, after in pairwise(numbers))
    if len(numbers) <= count or not rising or numbers[-1] < factor * numbers[0]:
        return None
    (first, before), (last, after) = used[0], used[-1]
    return _text(
        f"{key}: {before:.2f} at step {first}, {after:.2f} at step {last}, more in each step",
        f"{key}：第 {first} 步 {before:.2f}，第 {last} 步 {after:.2f}，逐步增长",
    )


def _text(english: str, chinese: str) -> Text:
    return Text(en=english, zh=chinese)
