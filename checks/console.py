"""verl's console line, `step:N - KEY:VALUE - KEY:VALUE …`, read back into numbers.

The line is written by verl/utils/logger/aggregate_logger.py (read in verl 0.6.0): values are numbers printed by pprint,
so plain ints and floats, `nan`, `inf`, and with numpy 2 also `np.float64(0.5)`. Ray puts `(TaskRunner pid=1)` before
it, possibly coloured, and a progress bar may stand on the same line.
"""

import re

Number = int | float | bool

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
STEP = re.compile(r"(?:^|[\s\r)])step:(-?\d+)(?= - |\s*$)(?: - )?(.*)$")
LITERAL = r"[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)|True|False"
VALUE = rf"(?:(?:np|numpy)\.\w+\((?:{LITERAL})\)|{LITERAL})"
PAIR = re.compile(rf"(?P<key>.+?):(?P<value>{VALUE})(?: - |\s*$)", re.IGNORECASE)


def plain(line: str) -> str:
    """A line of the log without colours and without what a carriage return has overwritten on the terminal."""
    return ANSI.sub("", line).rstrip("\r\n").rsplit("\r", 1)[-1]


def parse(line: str) -> dict[str, Number] | None:
    """The step and every metric of a console line, or None if it is another line. `step` comes first."""
    if "step:" not in line:
        return None
    found = STEP.search(plain(line))
    if not found:
        return None
    metrics: dict[str, Number] = {"step": int(found[1])}
    for pair in PAIR.finditer(found[2]):
        metrics[pair["key"]] = number(pair["value"])
    return metrics


def number(text: str) -> Number:
    """The number that Python or numpy printed as `text`."""
    inner = text[text.index("(") + 1 : -1] if text.endswith(")") else text
    if inner in ("True", "False"):
        return inner == "True"
    try:
        return int(inner)
    except ValueError:
        return float(inner)
