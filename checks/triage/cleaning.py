"""What a process said, apart from what Ray, vLLM and terminals put round it."""

import re
from dataclasses import dataclass

from checks.console import ANSI

# Read in logs of ray 2.46.0, vLLM 0.11.0 and torch 2.7.1.
RAY = re.compile(r"^\((?P<source>[^()]*pid=[^()]*|raylet|autoscaler[^()]*)\)\s?")
RANK = re.compile(r"^\[rank(?P<rank>\d+)\]:\s?")
VLLM = re.compile(r"^(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[[^]]*:\d+\] ?")
REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")
TIME = re.compile(r"(?:\d{4}-)?\d\d-\d\d[ T-](\d\d:\d\d:\d\d)")
RANK_INSIDE = re.compile(r"(?:\bRankID:|\b[Rr]ank[ :=\[]*)(\d+)\b")


@dataclass(frozen=True)
class Line:
    """A cleaned line. source: the process as Ray or vLLM names it, "" for the driver; times: how often it was said."""

    text: str
    source: str = ""
    rank: str = ""
    time: str = ""  # HH:MM:SS, "" where the line has none
    times: int = 1


def clean(raw: str) -> Line:
    """A raw line in its parts. Of what a carriage return has overwritten, the last."""
    text = ANSI.sub("", raw).rstrip("\r\n").rsplit("\r", 1)[-1]
    times = 1
    if found := REPEATED.search(text):
        times, text = int(found[1]), text[: found.start()]
    sources, rank, time = [], "", TIME.search(text)
    while found := RAY.match(text) or RANK.match(text) or VLLM.match(text):
        parts = found.groupdict()
        if "source" in parts:
            sources.append(parts["source"])
        rank = parts.get("rank", rank)
        text = text[found.end() :]
    if not rank and (inside := RANK_INSIDE.search(text)):
        rank = inside[1]
    return Line(text.rstrip(), " > ".join(sources), rank, time[1] if time else "", times)
