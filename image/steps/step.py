"""How a step of the build ends: with nothing to say, or with one line and exit code 1."""

import errno
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
IMAGES = ("performance", "commercial")  # matrices that are built from a base image and commits

SECRETS = Path("/run/secrets")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")  # whom the base trusts
# Variables by which pip, uv and git are told whom to trust, in the order in which a host's are looked at.
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


class StepError(Exception):
    """The step cannot be done. Its parts make the one line that the build ends with."""

    def __init__(self, expected: str, found: str, do: str):
        super().__init__(f"expected {expected}, found {' '.join(found.split())}; {do}")


@dataclass(frozen=True)
class Pin:
    """A component of the matrix, as far as the image needs it before there is more than a bare Python."""

    name: str
    repository: str
    ref: str
    install: str
    commit: str | None
    version: str | None


def pins(matrix: str, project: Path = PROJECT) -> dict[str, Pin]:
    """The components of a matrix by name. StepError for a matrix that no image is built from.

    matrix.py reads the same file with all its rules; it needs a package that is not there yet.
    """
    if matrix not in IMAGES:
        hint = "the cpu matrix is --target cpu" if matrix == "cpu" else "name one of them"
        raise StepError(f"MATRIX {' or '.join(IMAGES)}", repr(matrix), f"{hint}: --build-arg MATRIX={IMAGES[0]}")
    tables = tomllib.loads((project / "matrix.toml").read_text(encoding="utf-8"))
    own = tables[matrix]
    components = tables.get(own.get("extends"), {}).get("components", {}) | own.get("components", {})
    names = ("repository", "ref", "install", "commit", "version")
    return {name: Pin(name, *(one.get(key) for key in names)) for name, one in components.items()}


def lock_file(matrix: str, project: Path = PROJECT) -> Path:
    """The lock of a matrix: `requirements.lock` is the default one's."""
    return project / ("requirements.lock" if matrix == IMAGES[0] else f"requirements-{matrix}.lock")


def contents(project: Path = PROJECT) -> dict:
    """image/contents.toml."""
    return tomllib.loads((project / "image" / "contents.toml").read_text(encoding="utf-8"))


def need_space(folder: Path, gigabytes: float) -> None:
    """StepError where the file system that will hold `folder` has less room."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise StepError(
            f"{gigabytes:.0f} GB free for the build",
            f"{free:.1f} GB",
            "free some where the engine keeps its images (docker system df), then build again",
        )


@contextmanager
def trust() -> Iterator[None]:
    """Takes up what was handed to this RUN line as secrets: an index's configuration, certificates beside the base's.

    The variables stay set; the file with the certificates is gone at the end, so that the layer does not keep it.
    """
    pip, further = SECRETS / "pip", SECRETS / "ca"
    if pip.is_file():
        os.environ["PIP_CONFIG_FILE"] = str(pip)
    with tempfile.NamedTemporaryFile(prefix="ca-") as bundle:
        if further.is_file():
            bundle.writelines(one.read_bytes() + b"\n" for one in (AUTHORITIES, further) if one.is_file())
            bundle.flush()
            os.environ.update(dict.fromkeys(CERTIFICATES, bundle.name))
        yield


def run(name: str, body: Callable[..., None], arguments: list[str] | None = None) -> int:
    """Runs a step with the command line's arguments; the exit code."""
    try:
        with trust():
            body(*(sys.argv[1:] if arguments is None else arguments))
    except StepError as error:
        return _end(name, str(error))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        do = "free some space for the engine's images, then build again" if full else "see the lines above"
        what = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
        return _end(name, str(StepError("to write the image", what, do)))
    return 0


def say(line: str) -> None:
    """One line for the person who watches the build."""
    print(line, flush=True)


def _end(name: str, message: str) -> int:
    print(f"image: {name}: {message}", file=sys.stderr, flush=True)
    return 1
