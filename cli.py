"""What the command line does round its verbs (tasks.py): exit codes, messages, numbers, standard output.

`./invokew` runs this file: invoke on this folder's tasks.py wherever it is called, and with exit code 2 for bad
arguments. invoke itself leaves with 1, which here means findings or a failed run.
"""

import contextlib
import errno
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import invoke
from invoke import Exit, ParseError, Program, task

from errors import UserError

ROOT = Path(__file__).resolve().parent
ID = re.compile(r"[A-Za-z]\d+")  # of a row of the table of problems


class CommandLine(Program):
    """Its three steps that read the command line."""

    def parse_core(self, argv: list[str]) -> None:
        with _bad_arguments():
            super().parse_core(argv)

    def parse_tasks(self) -> None:
        with _bad_arguments():
            self.core.unparsed = _filled(self.core.unparsed)
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        with _bad_arguments():
            super().parse_cleanup()


def _filled(words: list[str]) -> list[str]:
    """The words with an empty text for a positional argument that may be left out: invoke knows required ones only."""
    if words[:1] != ["problems"] or any(ID.fullmatch(word) for word in words[1:]):
        return words
    following = words[1:2]
    return words if following and not following[0].startswith("-") else ["problems", "", *words[1:]]


@contextlib.contextmanager
def _bad_arguments() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(f"error: {error} See ./invokew --list and ./invokew --help VERB.", code=2) from None


def command(*arguments, **options):
    """invoke's `task`, with a user's mistake shown as a message and an exit code instead of a traceback."""

    def decorate(body):
        @functools.wraps(body)
        def guarded(*args, **kwargs):
            _open_output()
            try:
                code = body(*args, **kwargs)
            except UserError as error:
                raise Exit(f"error: {error}", code=error.code) from None
            finally:
                sys.stdout.flush()
            if code:
                raise Exit(code=code)

        return task(*arguments, **options)(guarded)

    if len(arguments) == 1 and callable(arguments[0]):
        body, arguments = arguments[0], ()
        return decorate(body)
    return decorate


class _Output(io.FileIO):
    """Standard output. Where it takes no more, the command ends."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is still in buffers
            if error.errno == errno.EPIPE:  # as `| head` leaves it: nothing to say, and nobody to say it to
                raise Exit(code=128 + signal.SIGPIPE) from None
            found = f"found: {error.strerror}; free some space or send it elsewhere"
            raise Exit(f"error: expected to write to standard output, {found}", code=2) from None


def _open_output():
    """Whatever is printed can be: also names that the terminal's encoding lacks, also without a standard output."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, for as long as the process
    elif sys.stdout is sys.__stdout__:
        sys.stdout.flush()
        raw, given = _Output(sys.stdout.fileno(), "w", closefd=False), sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), given.encoding, errors="backslashreplace", line_buffering=given.line_buffering
        )


def whole(option, default):
    """The default of an option that takes a whole number; invoke reads the option's text with its class."""

    class Whole(int):
        def __new__(cls, given):
            try:
                return super().__new__(cls, given)
            except ValueError:
                raise Exit(f"error: {option}: expected a whole number, found {given!r}", code=2) from None

    return Whole(default)


def main(arguments: list[str]) -> None:
    """Runs the command and leaves with its exit code."""
    program = CommandLine(name="Invoke", binary="invokew", binary_names=["invokew"], version=invoke.__version__)
    program.run(["invokew", "--search-root", str(ROOT), *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
