"""The image that this container was made from: the manifest that its build wrote into it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from checks.facts.reading import at, text_of

MANIFEST, VARIABLE = "/opt/ascend-rl/manifest.json", "ASCEND_RL_MANIFEST"
FORMAT = 1  # of the manifest


def image() -> dict | None:
    """The manifest; None outside of an image of this project. ValueError for a file that is none."""
    named = os.environ.get(VARIABLE)
    place = Path(named) if named else at(MANIFEST)
    if not place.exists():
        return None
    found = json.loads(text_of(place, 8 << 20))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        shown = f"format {found.get('format')!r}" if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{place}: expected a manifest of format {FORMAT}, found {shown:.60}")
    return found
