"""Writes what the image is made of: python -m image.steps.describe MATRIX FOLDER

FOLDER/manifest.json (see manifest.py), FOLDER/sbom.json (CycloneDX), FOLDER/verbs (of the command line, for the entry
point). All three are the same for the same contents: the only date is SOURCE_DATE_EPOCH.
"""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name

import manifest
import matrix as matrices
from image.steps import sbom
from image.steps.step import lock_file, run, say
from patches import catalogue, engine, places
from patches.pins import LOCK as FINGERPRINTS


def describe(matrix: str, folder: str) -> None:
    """The three files."""
    document = {
        "format": manifest.FORMAT,
        "matrix": matrix,
        "machine": platform.machine(),
        "base": os.environ.get("BASE_IMAGE", ""),
        "revision": os.environ.get("REVISION", ""),
        "created": created(),
        "lock": lock(matrix),
        "components": components(matrix),
        "packages": packages(),
        "system": system(),
        "debian": debian(),
        "patches": patches(matrix),
        "fingerprints": digest(FINGERPRINTS),
    }
    _write(Path(folder) / "manifest.json", document)
    _write(Path(folder) / "sbom.json", sbom.made(document))
    (Path(folder) / "verbs").write_text("\n".join(verbs()) + "\n")
    say(
        f"{len(document['packages'])} packages, {len(document['debian'])} of Debian, {len(document['patches'])} patches"
    )


def created() -> str:
    """SOURCE_DATE_EPOCH as an ISO date, and the epoch itself where there is none: never the time of the build."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lock(matrix: str) -> dict:
    """The lock that was installed."""
    file = lock_file(matrix)
    return {"file": file.name, "sha256": digest(file)}


def components(matrix: str) -> dict:
    """The matrix's components: repository, and commit, version or both."""
    found = matrices.load(matrix).components
    keys = ("repository", "ref", "install", "commit", "version")
    return {name: {k: v for k in keys if (v := getattr(one, k))} for name, one in sorted(found.items())}


def packages() -> dict[str, str]:
    """Python's, by name."""
    found = importlib.metadata.distributions()
    return dict(sorted((canonicalize_name(one.metadata["Name"]), one.version) for one in found))


def system() -> dict[str, str]:
    """The distribution below: ID and VERSION_ID of os-release."""
    found = platform.freedesktop_os_release()
    return {"id": found.get("ID", "linux"), "version": found.get("VERSION_ID", "")}


def debian() -> dict[str, str]:
    """Debian's or Ubuntu's, by name; empty where there is no dpkg."""
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version}\n"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(sorted(line.split()[1:] for line in lines if line.startswith("installed ")))


def patches(matrix: str) -> list[dict[str, str]]:
    """States of the patches on what is installed."""
    judged = engine.judge(catalogue.patches(matrix), places.place(None))
    return [{"id": verdict.patch.id, "state": verdict.state} for verdict in judged.verdicts]


def verbs() -> list[str]:
    """Of the command line, with the names of collections that are verbs themselves."""
    import tasks

    return sorted({name for task, aliases in tasks.namespace.task_names.items() for name in (task, *aliases)})


def digest(file: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write(file: Path, document: dict) -> None:
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run("describe", describe))
