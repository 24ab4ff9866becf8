"""Fetches what the matrix pins by commit: python3 -m image.steps.sources MATRIX FOLDER

Every source is fetched by its full commit and asserted to be it, so that any mirror may serve it: NAME_REPOSITORY, as
MEGATRON_LM_REPOSITORY, names one. Written beside them: `sources.json`, name to commit and repository (the matrix's, as
a mirror's address may hold a password). History does not come along.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from image.steps.step import Pin, StepError, need_space, pins, run, say

SPACE_GB = 2.0
SECONDS = 1800  # for one repository
REFUSED = (
    r"not our ref|unadvertised object|couldn't find remote ref|no such ref|did not send all necessary objects|"
    r"does not support shallow"  # a mirror of plain files over http
)


def fetch_all(matrix: str, folder: str) -> None:
    """All components that are built from a commit, each in `folder`/NAME."""
    root = Path(folder)
    wanted = [pin for pin in pins(matrix).values() if pin.install == "git"]
    need_space(root, SPACE_GB)
    root.mkdir(parents=True, exist_ok=True)
    record = {}
    for pin in wanted:
        commit = fetch(pin, root / pin.name, os.environ.get(variable(pin.name)) or pin.repository)
        record[pin.name] = {"commit": commit, "repository": pin.repository, "ref": pin.ref}
        say(f"{pin.name} {commit}")
    (root / "sources.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def variable(name: str) -> str:
    """The build argument that names a mirror of a component."""
    return f"{name.upper().replace('-', '_')}_REPOSITORY"


def fetch(pin: Pin, folder: Path, repository: str) -> str:
    """One component's tree at its commit; git's word for which it is. StepError where there is none, or no answer."""
    git = _Git(pin, folder, repository)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    git.run("init", "--quiet")
    failure = git.attempt("fetch", "--quiet", "--depth=1", "--no-tags", repository, pin.commit)
    if failure and re.search(REFUSED, failure):
        # Some servers hand out branches and tags only; the commit is in one of them, or not there.
        failure = git.attempt("fetch", "--quiet", repository, "+refs/heads/*:refs/x/*", "+refs/tags/*:refs/tags/*")
        if failure or git.attempt("cat-file", "-e", f"{pin.commit}^{{commit}}"):
            raise git.error(failure or f"no such commit in it ({pin.ref})")
    elif failure:
        raise git.error(failure)
    git.run("-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", pin.commit)
    head = git.run("rev-parse", "HEAD").strip()
    if head != pin.commit:
        raise git.error(f"commit {head}")
    if (folder / ".gitmodules").exists():
        raise git.error("submodules, which nothing fetches")
    shutil.rmtree(folder / ".git")
    return head


class _Git:
    """git in a component's folder, and the words for its failures."""

    def __init__(self, pin: Pin, folder: Path, repository: str):
        self.pin, self.folder, self.repository = pin, folder, repository

    def attempt(self, *arguments: str) -> str:
        """Nothing where it went well, else what git said last."""
        done = self._call(arguments)
        if done.returncode == 0:
            return ""
        said = [line for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in said if line.startswith(("fatal:", "error:"))]
        return without_password((telling or said or [f"git's exit code {done.returncode}"])[0])

    def run(self, *arguments: str) -> str:
        done = self._call(arguments)
        if done.returncode:
            raise self.error(done.stderr or f"git's exit code {done.returncode}")
        return done.stdout

    def error(self, found: str) -> StepError:
        name = variable(self.pin.name)
        return StepError(
            f"{self.pin.name} at commit {self.pin.commit} from {without_password(self.repository)}",
            without_password(found),
            f"check the address, proxy (HTTPS_PROXY) or certificates, or name a mirror: --build-arg {name}=URL",
        )

    def _call(self, arguments: tuple[str, ...]) -> subprocess.CompletedProcess:
        # A mirror that is mounted into the build belongs to somebody else; its commits are checked.
        command = ["git", "-C", str(self.folder), "-c", "safe.directory=*", *arguments]
        quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"}
        try:
            return subprocess.run(command, capture_output=True, text=True, errors="replace", env=quiet, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise self.error(f"no answer within {SECONDS} s") from None
        except FileNotFoundError:
            raise StepError("git in the base image", "none", "add it to image/debian.txt") from None


def without_password(text: str) -> str:
    """A text whose addresses have lost what stands before their host: user, token, password."""
    return re.sub(r"://[^/?#\s]*@", "://", text)


if __name__ == "__main__":
    sys.exit(run("sources", fetch_all))
