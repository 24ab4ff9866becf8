"""What an image is made of, as its build wrote it down: `read()` gives it there, and None everywhere else.

format, matrix, machine, base, revision (this project's commit, where the build was told), created,
lock {file, sha256}, components {name: {commit | version, repository}}, packages {name: version}, system {id, version},
debian {name: version}, patches [{id, state}], fingerprints (sha256 of patches/pins.lock).
"""

import json
import os
from pathlib import Path

from errors import UserError

FORMAT = 1
VARIABLE = "ASCEND_RL_MANIFEST"
PLACE = "/opt/ascend-rl/manifest.json"


def path() -> Path:
    """Where an image has its manifest."""
    return Path(os.environ.get(VARIABLE) or PLACE)


def read() -> dict | None:
    """The manifest of the image that this runs in. UserError for a file that is none."""
    file = path()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        advice = f"unset {VARIABLE}, or build the image anew"
        raise UserError(f"{file}: expected an image's manifest, found: {error}; {advice}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("matrix"), str):
        raise UserError(f"{file}: expected an image's manifest of format {FORMAT}, found another; build the image anew")
    return found


def matrix() -> str | None:
    """The matrix that the image was built for; None outside images."""
    found = read()
    return found["matrix"] if found else None
