"""What the peers' tests import and the lock does not hold: a folder of its own, never the environment."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from emulator import site
from emulator.peers.known import PeersError


def folder(requirements: Path) -> Path:
    """The packages of a requirements file, installed beside the site folder when not there. Raises PeersError."""
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:8]
    target = site.ensure().parent / f"peers-{key}"
    if not target.is_dir():
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        done = subprocess.run(
            [*command, "--target", unfinished, "-r", requirements], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PeersError(f"expected to install {requirements}, found: {done.stderr.strip()}\nSee pip's settings.")
        unfinished.rename(target)
    return target
