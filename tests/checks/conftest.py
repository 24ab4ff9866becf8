"""The vendor's files and tables that facts are parsed from, made after their published forms."""

from pathlib import Path

import pytest

VENDOR = Path(__file__).parent / "vendor"


@pytest.fixture
def vendor():
    return lambda name: (VENDOR / name).read_text(encoding="utf-8")
