"""What a rehearsal left behind, read back: metrics, the instruments' journals, the devices' traces, checkpoints."""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from recipes import metrics

TIMES = ("timing_", "perf/", "global_seqlen/")  # metrics that depend on the machine


@dataclass(frozen=True)
class Observations:
    """One run of the miniature as seen from outside."""

    steps: list[dict] = field(default_factory=list)  # verl's metrics
    rollouts: list[dict] = field(default_factory=list)  # a rank's rollout: step, rank, state, prompts, answers
    sent: dict[str, dict[str, str]] = field(default_factory=dict)  # rank: tensor: fingerprint, first transfer
    traces: list[dict] = field(default_factory=list)  # one a process
    features: list[str] = field(default_factory=list)  # of MindSpeed, that were on
    checkpoint: dict[str, str] = field(default_factory=dict)  # tensor of the last checkpoint: fingerprint

    def numbers(self, step: int) -> dict[str, float]:
        """The metrics of a step that do not depend on the machine."""
        found = [entry for entry in self.steps if entry["step"] == step]
        return {key: value for entry in found for key, value in entry.items() if not key.startswith(TIMES)}

    def groups(self, step: int) -> dict[str, list[str]]:
        """The answers of a step by prompt; ranks of one engine, which say the same, count once."""
        groups: dict[str, list[str]] = defaultdict(list)
        for entry in self.engines(step):
            for prompt, answer in zip(entry["prompts"], entry["answers"], strict=True):
                groups[prompt].append(answer)
        return dict(groups)

    def mindspeed(self) -> dict[str, list]:
        """What of MindSpeed was active: its features, and the names that its patches replace."""
        replaced = {name for trace in self.traces for name in trace.get("patches") or ()}
        return {"features": self.features, "patches": sorted(replaced)}

    def engines(self, step: int) -> list[dict]:
        """One rank's entry for each rollout engine."""
        first: dict[tuple, dict] = {}
        for entry in self.rollouts:
            if entry["step"] == step:
                first.setdefault(entry.get("engine", entry["rank"]), entry)
        return list(first.values())


def read(run: Path) -> Observations:
    """What is there; a run that stopped early has left less."""
    return Observations(
        metrics.read(run / "metrics.jsonl"),
        _journal(run / "probes", "generation"),
        _sent(run / "probes"),
        [trace for file in sorted((run / "trace").glob("*.json")) if (trace := _json(file))],
        sorted({name for entry in _journal(run / "probes", "features") for name in entry["active"]}),
    )


def model_tensors(folder: Path) -> dict[str, str]:
    """Fingerprints of the tensors of a Hugging Face checkpoint, read from the safetensors files as they are."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
            for name, entry in header.items():
                if name != "__metadata__":
                    start, end = entry["data_offsets"]
                    opened.seek(8 + size + start)
                    found[name] = hashlib.sha256(opened.read(end - start)).hexdigest()[:16]
    return found


def _sent(folder: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for entry in _journal(folder, "transfer"):
        found[entry["rank"]][entry["name"]] = entry["sha256"]
    return dict(found)


def _journal(folder: Path, name: str) -> list[dict]:
    found = []
    for file in sorted(folder.glob(f"{name}-rank*.jsonl")):
        rank = file.stem.rpartition("rank")[2]
        for line in file.read_text().splitlines():
            try:
                found.append({"rank": rank, **json.loads(line)})
            except ValueError:  # cut off when the process died
                continue
    return found


def _json(file: Path) -> dict | None:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None
