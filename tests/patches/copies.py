"""Copies made of links: whoever patches or compiles replaces a name, not the contents that others have, too."""

import os
import shutil
from pathlib import Path


def linked(source: Path, target: Path, *ignored: str) -> Path:
    """A tree with second names of the same files, without those that match a pattern; the new tree."""
    ignore = shutil.ignore_patterns(*ignored)
    return Path(shutil.copytree(source, target, symlinks=True, copy_function=_link, ignore=ignore))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)
