"""A run's scratch folder, for sockets and temporary files: a short path of plain characters, gone after the run.

Ray starts its workers with `bash -c "exec PYTHON …"` and quotes all but PYTHON (ray/_private/runtime_env/context.py,
read in 2.46), so in an environment whose path has a space no worker would ever start. The folder therefore holds a link
to the environment. Python finds pyvenv.cfg through it, and everything that is derived from its own path is plain, too.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from errors import UserError

# A socket's path has at most 107 bytes (sun_path in <sys/un.h>). Below its folder Ray 2.46 makes
# session_<date>_<microseconds>_<pid>/sockets/plasma_store, up to 64 bytes.
SOCKET_PATH = 107
RAY_BELOW = len("/ray/session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store")

TEMPORARY, ENVIRONMENT = "tmp", "venv"
PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # what neither a shell nor Hydra takes for something else


def place() -> Path:
    """Where scratch folders go. UserError where no path is plain, and short enough for Ray's sockets."""
    places = list(dict.fromkeys([tempfile.gettempdir(), "/tmp"]))
    limit = SOCKET_PATH - RAY_BELOW - len("/r.12345678")
    for one in places:
        if len(os.fsencode(one)) <= limit and PLAIN.fullmatch(one) and os.access(one, os.W_OK):
            return Path(one)
    raise UserError(
        f"expected a writable temporary folder whose path has at most {limit} bytes (Ray puts sockets below it), none "
        f"of them a space or another special character, found {', '.join(places)}; set TMPDIR to such a one"
    )


def make() -> Path:
    """A new folder for one run; the guard removes it."""
    scratch = Path(tempfile.mkdtemp(prefix="r.", dir=place()))
    (scratch / TEMPORARY).mkdir()
    (scratch / ENVIRONMENT).symlink_to(sys.prefix)
    return scratch


def python(scratch: Path) -> str:
    """This Python under a path that Ray can use."""
    if PLAIN.fullmatch(sys.executable):
        return sys.executable
    return str(scratch / ENVIRONMENT / os.path.relpath(sys.executable, sys.prefix))
