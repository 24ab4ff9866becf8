"""Builds and installs what the matrix pins by commit: python -m image.steps.components MATRIX SOURCES

Runs in the environment that has the lock, under the entry point, which sources CANN's environment. Each installed
package gets its commit in direct_url.json (PEP 610), where pip, the doctor and rehearsals look for it.
"""

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from image.steps.step import Pin, StepError, contents, pins, run, say

TREES = Path("/opt/ascend-rl/src")  # sources that stay
CANN = Path("/usr/local/Ascend/ascend-toolkit/latest")


def install_all(matrix: str, folder: str) -> None:
    """All components in the order of contents.toml, without their requirements: the lock has those."""
    pinned, sources = pins(matrix), Path(folder)
    fetched = json.loads((sources / "sources.json").read_text())
    for name, how in contents()["components"].items():
        if pinned[name].install == "git":  # with the commit that was fetched: the gate holds it against the matrix
            install(replace(pinned[name], commit=fetched[name]["commit"]), how, sources / name, matrix)


def install(pin: Pin, how: dict, source: Path, matrix: str) -> None:
    """One component. StepError with the compiler's or pip's telling line where it does not build."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-compile"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-index"]
    keep = how["keep"] if matrix in how.get("tree", {}) else []
    if keep:
        source = Path(shutil.copytree(source, TREES / pin.name, symlinks=True))
        # `compat` puts the tree itself on the path; else only the packages that setup.py lists could be imported.
        command += ["--config-settings", "editable_mode=compat", "--editable"]
    done = subprocess.run(
        [*command, str(source)],
        env={**os.environ, **build_environment(pin, how)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        print(done.stdout[-20000:], file=sys.stderr)
        raise StepError(f"{pin.name} {pin.commit} to build", _telling(done.stdout), "see the lines above")
    for path in list(source.iterdir()) if keep else ():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    version = record_commit(importlib.metadata.distribution(how["package"]), pin)
    say(f"{pin.name} {version} from {pin.commit}")


def build_environment(pin: Pin, how: dict) -> dict[str, str]:
    """What a build gets on top of the step's environment."""
    # Not …_FOR_NAME: the setup.py of vLLM and vllm-ascend ask setuptools-scm without a name.
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION": pin.version or f"0+g{pin.commit[:12]}"}
    added = {**version, **how.get("environment", {})}
    stubs = CANN / f"{platform.machine()}-linux" / "devlib"  # the driver's libraries, which only a host has
    if stubs.is_dir():
        added["LD_LIBRARY_PATH"] = f"{os.environ.get('LD_LIBRARY_PATH', '')}:{stubs}"
    return added


def record_commit(package: importlib.metadata.Distribution, pin: Pin) -> str:
    """Writes where an installed package comes from; its version."""
    file = Path(str(package.locate_file(""))) / package._path.name / "direct_url.json"
    origin = {"url": pin.repository, "vcs_info": {"vcs": "git", "requested_revision": pin.ref, "commit_id": pin.commit}}
    file.write_text(json.dumps(origin, sort_keys=True))
    _correct(file.with_name("RECORD"), f"{file.parent.name}/{file.name}", file.read_bytes())
    return package.version


def _correct(record: Path, name: str, content: bytes) -> None:
    """Gives a file's row in RECORD its hash and size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    rows = [row for row in csv.reader(io.StringIO(record.read_text())) if row and row[0] != name]
    rows.append([name, f"sha256={digest}", str(len(content))])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    record.write_text(text.getvalue())


def _telling(output: str) -> str:
    """The compiler's first error, else the exception that Python ended with, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    compiler = [line for line in lines if re.search(r"\berror: ", line) and not line.startswith("error: ")]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unavailable)\b", line)]
    return (compiler[:1] or python[-1:] or lines[-1:] or ["no output"])[0][:300]


if __name__ == "__main__":
    sys.exit(run("components", install_all))
