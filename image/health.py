"""The images' health check, cheap enough for every minute: what a run needs to go on. Standard library only."""

import json
import os
import shutil
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
RUNS_GB, SHARED_GB = 0.5, 0.05  # logs and metrics; Ray's and torch's shared memory that is still free


def faults() -> list[str]:
    """What is wrong, a line each: expected, found, what to do."""
    found = []
    manifest = Path(os.environ.get("ASCEND_RL_MANIFEST") or HOME.parent / "manifest.json")
    try:
        json.loads(manifest.read_text())
    except (OSError, ValueError) as error:
        found.append(f"expected the manifest {manifest}, found: {error}; use the image as it was built")
    runs = HOME / "runs"
    if not os.access(runs, os.W_OK):
        found.append(f"expected a writable {runs}, found none for user {os.getuid()}; mount a volume that it may write")
    for place, wanted, do in ((runs, RUNS_GB, "free some"), (Path("/dev/shm"), SHARED_GB, "give it more: --shm-size")):
        if place.is_dir() and (free := shutil.disk_usage(place).free / 1e9) < wanted:
            found.append(f"expected {wanted} GB free in {place}, found {free:.2f}; {do}")
    return found


if __name__ == "__main__":
    problems = faults()
    print("\n".join(problems) or "fine")
    sys.exit(bool(problems))
