"""invoke as `./invokew` runs it: on this folder's tasks.py, wherever it is called; bad arguments give exit code 2.

invoke itself leaves with 1, which here means findings or a failed run.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import invoke
from invoke import Exit, ParseError, Program

ROOT = Path(__file__).resolve().parent


class CommandLine(Program):
    """Its three steps that read the command line."""

    def parse_core(self, argv: list[str]) -> None:
        with _bad_arguments():
            super().parse_core(argv)

    def parse_tasks(self) -> None:
        with _bad_arguments():
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        with _bad_arguments():
            super().parse_cleanup()


@contextlib.contextmanager
def _bad_arguments() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(f"error: {error} See ./invokew --list and ./invokew --help VERB.", code=2) from None


def main(arguments: list[str]) -> None:
    """Runs the command and leaves with its exit code."""
    program = CommandLine(name="Invoke", binary="invokew", binary_names=["invokew"], version=invoke.__version__)
    program.run(["invokew", "--search-root", str(ROOT), *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
