"""The manifest as CycloneDX, for scanners: every package of Python and Debian and every commit, by its package URL."""

import re
import uuid
from urllib.parse import quote

DISTRIBUTION = "debian"


def made(document: dict) -> dict:
    """A CycloneDX 1.5 document of a manifest."""
    commits = [_commit(name, one) for name, one in document["components"].items() if one.get("install") == "git"]
    python = [_package("pypi", name, version) for name, version in document["packages"].items()]
    system = [_package(f"deb/{DISTRIBUTION}", name, version) for name, version in document["debian"].items()]
    parts = sorted([*commits, *python, *system], key=lambda part: part["bom-ref"])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, repr(sorted(document.items()))).urn,
        "version": 1,
        "metadata": {
            "timestamp": document["created"],
            "component": {"type": "container", "name": "ascend-rl", "version": document["matrix"]},
        },
        "components": parts,
    }


def _package(kind: str, name: str, version: str) -> dict:
    url = f"pkg:{kind}/{quote(name, safe='')}@{quote(version, safe='')}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _commit(name: str, component: dict) -> dict:
    owner, repository = re.search(r"([^/]+)/([^/]+?)(?:\.git)?/?$", component["repository"]).groups()
    url = f"pkg:github/{owner.lower()}/{repository.lower()}@{component['commit']}"
    return {"type": "library", "bom-ref": url, "name": name, "version": component["commit"], "purl": url}
