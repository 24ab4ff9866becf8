"""Operators that are compiled at the first use: torch's extensions and the locks that a killed compilation leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

from checks.facts.paths import file_system


def builds() -> dict:
    home = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    place = Path(home)
    if not place.is_dir():
        return {"folder": home, "locks": [], "file_system": None}
    now = time.time()
    locks = [{"path": str(path), "age_seconds": round(now - path.stat().st_mtime)} for path in _locks(place)]
    return {"folder": home, "locks": locks, "file_system": file_system(home)}


def _locks(place: Path) -> list[Path]:
    return sorted(
        path for pattern in ("lock", "*.lock") for depth in ("*", "*/*") for path in place.glob(f"{depth}/{pattern}")
    )
