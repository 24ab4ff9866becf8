"""Ray on this machine: its processes, whoever started them."""

from __future__ import annotations

import os
import re

from checks.facts.reading import at

DAEMONS = ("raylet", "gcs_server")


def ray() -> dict:
    found = []
    for folder in at("/proc").iterdir():
        if folder.name.isdigit():
            about = _daemon(folder)
            if about:
                found.append(about)
    return {"daemons": sorted(found, key=lambda one: one["pid"]), "address": os.environ.get("RAY_ADDRESS")}


def _daemon(folder) -> dict | None:
    """A process of Ray that holds ports and memory, or None for any other."""
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return None
    name = os.path.basename(words[0].decode("utf-8", "replace"))
    if name not in DAEMONS:
        return None
    line = b" ".join(words).decode("utf-8", "replace")
    session = re.search(r"(/\S+?/session_[\w-]+)", line)
    about = {"pid": int(folder.name), "name": name, "session": session[1] if session else None}
    try:  # whether CANN's environment was there when it was started: workers have the raylet's
        about["sourced"] = b"\0ASCEND_HOME_PATH=" in b"\0" + (folder / "environ").read_bytes()
    except OSError:
        about["sourced"] = None
    return about
