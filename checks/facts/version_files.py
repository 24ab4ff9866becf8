"""The vendor's version files, text to fields: `version.info`, `ascend_toolkit_install.info`, `version.cfg`."""

from __future__ import annotations

import re

# An indented `name : value` is a line of NNAL's version.info, `name=value` one of all others; full-width signs too.
LINE = re.compile(r"^\s*([\w][\w .-]*?)\s*[=:＝：]\s*(.*?)\s*$", re.MULTILINE)


def fields(text: str) -> dict[str, str]:
    """The fields by name, in lower case and with underscores; lines that are none are left out."""
    lines = LINE.findall(text.replace("\r", "").replace("\0", ""))
    return {re.sub(r"[\s-]+", "_", name).lower(): value.strip("\"'") for name, value in lines}


def running(text: str) -> dict[str, str]:
    """Running versions of a `version.cfg` by part: `toolkit_running_version=[7.8.0.1.231:8.3.RC1]` is 8.3.RC1."""
    found = {}
    for name, value in fields(text).items():
        match = re.match(r"\[?(?:[^:\]]*:)?([\w.+-]+)\]?", value)
        if name.endswith("_running_version") and match:
            found[name[: -len("_running_version")]] = match[1]
    return found


def version(found: dict[str, str]) -> str | None:
    """The product's version among a file's fields: `package_version` or `version`; NNAL writes its package's name."""
    for name in ("package_version", "version"):
        if found.get(name):
            return found[name]
    named = [value for name, value in found.items() if name.startswith("ascend_cann_") and value]
    return named[0] if named else None
