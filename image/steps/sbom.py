"""The manifest as CycloneDX, for scanners: every package of Python and Debian and every commit, by its package URL."""

import re
import uuid
from urllib.parse import quote


def made(document: dict) -> dict:
    """A CycloneDX 1.5 document of a manifest."""
    commits = [_commit(name, one) for name, one in document["components"].items() if one.get("install") == "git"]
    python = [_package("pypi", name, version) for name, version in document["packages"].items()]
    kind, release = f"deb/{document['system']['id']}", _release(document["system"])
    system = [_package(kind, name, version, release) for name, version in document["debian"].items()]
    parts = sorted([*commits, *python, *system], key=lambda part: part["bom-ref"])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, repr(sorted(document.items()))).urn,
        "version": 1,
        "metadata": {
            "timestamp": document["created"],
            "component": {
                "type": "container",
                "name": f"ascend-rl:{document['matrix']}",
                "version": document["revision"] or document["created"],
            },
        },
        "components": parts,
    }


def _package(kind: str, name: str, version: str, qualifiers: str = "") -> dict:
    url = f"pkg:{kind}/{quote(name, safe='')}@{quote(version, safe='')}{qualifiers}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _release(system: dict) -> str:
    """Of Debian or Ubuntu: advisories are by distribution and release."""
    return f"?distro={quote(system['id'] + '-' + system['version'], safe='')}"


def _commit(name: str, component: dict) -> dict:
    owner, repository = re.search(r"([^/]+)/([^/]+?)(?:\.git)?/?$", component["repository"]).groups()
    url = f"pkg:github/{owner.lower()}/{repository.lower()}@{component['commit']}"
    return {"type": "library", "bom-ref": url, "name": name, "version": component["commit"], "purl": url}
