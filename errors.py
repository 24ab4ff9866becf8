"""The one exception that stands for a mistake of the user or of the machine, never for a defect of this project."""

import errno
from pathlib import Path


class UserError(Exception):
    """Something that the user can put right.

    The message says what was expected, what was found and what to do; it may have several lines. The command line
    prints it without a traceback and leaves with `code`:

    - 2: the command could not do its job (bad arguments, a file that cannot be read, no disk space);
    - 1: it did its job and found something that must be fixed, or the run that it started failed.
    """

    def __init__(self, message: str, *, code: int = 2):
        super().__init__(message)
        self.code = code


def unwritable(error: OSError, place: Path, option: str = "") -> UserError:
    """The message on a place that cannot be written; `option` is how the user names another, if that is possible."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space there" if full else "make it writable"
    advice += f", or name another place with {option}" if option else ""
    return UserError(f"{place}: expected to write there, found: {error.strerror or error}; {advice}")
