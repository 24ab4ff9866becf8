"""The console line of verl, read back."""

import json
import math
import pprint

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes import metrics

KEYS = st.from_regex(r"[a-z][a-z_0-9-]{0,8}(/[a-z0-9_@.-]{1,8}){0,3}", fullmatch=True).filter(lambda key: key != "step")
NUMBERS = st.one_of(
    st.integers(-(10**18), 10**18),
    st.booleans(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(allow_nan=True, allow_infinity=True).map(numpy.float64),
    st.floats(allow_nan=True, allow_infinity=True, width=32).map(numpy.float32),
    st.integers(-(2**31), 2**31).map(numpy.int64),
)
PREFIXES = st.sampled_from(
    [
        "",
        "(TaskRunner pid=123) ",
        "(TaskRunner pid=123, ip=10.0.0.1) ",
        "\x1b[36m(TaskRunner pid=9)\x1b[0m ",
        "Training Progress:  10%|█         | 2/20 [00:10<01:30,  5.0s/it]\r",
        "(TaskRunner pid=9) Training Progress:   5%|5 | 1/20 [00:10<01:30] ",
    ]
)


def printed(value, repr_of_numpy_2: bool) -> str:
    """A number as pprint writes it under numpy 1 or under numpy 2."""
    if isinstance(value, numpy.generic):
        text = repr(value.item()) if isinstance(value, numpy.integer) else str(value)
        return f"np.{type(value).__name__}({text})" if repr_of_numpy_2 else text
    return pprint.pformat(value)


@given(st.integers(0, 10**6), st.dictionaries(KEYS, NUMBERS, max_size=12), PREFIXES, st.booleans())
def test_every_key_and_value_comes_back(step, values, prefix, numpy_2):
    pairs = [f"{key}:{printed(value, numpy_2)}" for key, value in values.items()]
    found = metrics.parse(prefix + " - ".join([f"step:{step}", *pairs]) + "\n")
    assert found.pop("step") == step
    assert list(found) == list(values)
    for key, value in values.items():
        wanted = float(str(value)) if isinstance(value, numpy.floating) else value
        assert found[key] == wanted or (math.isnan(found[key]) and math.isnan(wanted))


@given(st.dictionaries(KEYS, NUMBERS, max_size=6))
def test_the_file_is_strict_json_and_gives_the_numbers_back(values):
    line = metrics.to_json({"step": 1, **{key: metrics.number(printed(value, True)) for key, value in values.items()}})
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    for key, value in values.items():
        wanted = float(str(value)) if isinstance(value, numpy.floating) else float(value)
        assert float(found[key]) == wanted or (math.isnan(float(found[key])) and math.isnan(wanted))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Total training steps: 20",
        "footstep:3 - a:1",
        "step:three - a:1",
        "local_global_step_folder: /tmp/global_step:4",
        "('Initial validation metrics: {}')",
    ],
)
def test_other_lines_are_no_steps(line):
    assert metrics.parse(line) is None


def test_a_key_with_the_separator_and_a_colon_in_it_stays_whole():
    found = metrics.parse("step:2 - val-core/a - b:c/reward/mean@1:0.5 - actor/lr:1e-06")
    assert found == {"step": 2, "val-core/a - b:c/reward/mean@1": 0.5, "actor/lr": 1e-06}


def test_the_file_survives_a_torn_line_and_a_repeated_step(tmp_path):
    file = tmp_path / "metrics.jsonl"
    writer = metrics.Writer(file)
    for step, value in ((1, 0.1), (2, 0.2), (2, 0.3)):
        writer.append({"step": step, "critic/score/mean": value})
        assert len(file.read_text().splitlines()) >= step, "a step is in the file as soon as it is known"
    writer.close()
    with file.open("a") as opened:
        opened.write('{"step": "a"}\n{"step": null}\n{"step": true}\n[1]\n"step"\n7\n{"step": 3, "critic/sc')
    assert metrics.read(file) == [{"step": 1, "critic/score/mean": 0.1}, {"step": 2, "critic/score/mean": 0.3}]


def test_first_and_last_reward_pass_over_steps_that_trained_nothing():
    steps = [{"step": 0, "val-core/x": 9.0}] + [{"step": n, "critic/score/mean": n / 10} for n in range(1, 9)]
    first, last = metrics.first_and_last(steps)
    assert first == pytest.approx(0.2) and last == pytest.approx(0.7)
    assert metrics.first_and_last([{"step": 0}]) is None
    assert metrics.first_and_last([{"step": 1, "critic/rewards/mean": 0.5}]) == (0.5, 0.5)
