"""The command line: one task, one verb. `invoke --list` shows the verbs, `invoke --help VERB` its arguments.

Imports stay inside the tasks, so that a command loads only what it needs.
"""

import errno
import functools
import io
import os
import signal
import sys
from pathlib import Path

from invoke import Collection, Exit, task

from errors import UserError

ROOT = Path(__file__).resolve().parent


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


NODES, STEPS, ROUNDS = whole("--nodes", 0), whole("--steps", 10), whole("--rounds", 7)


@command(
    iterable=["set"],
    help={
        "recipe": "name of a recipe (see `invoke recipes`), or a file that ends in .yaml",
        "matrix": "version matrix, else the recipe's own",
        "nodes": "number of machines, else the recipe's own",
        "set": "KEY=VALUE, any key of the recipe; +KEY=VALUE adds one; can be repeated",
        "dry-run": "print the command and its environment, start nothing",
        "rehearse": "run the recipe in miniature on emulated devices",
        "root": "with --rehearse: the sources of the matrix's commits",
        "run-dir": "where the run is kept; that of an earlier run resumes it",
    },
)
def train(_, recipe="", matrix=None, nodes=NODES, set=None, dry_run=False, rehearse=False, root=None, run_dir=None):
    """Train a recipe: compose, check, launch, watch."""
    from recipes.train import Order, train

    return train(Order(recipe, matrix, nodes, set, run_dir, rehearse, root), dry_run=dry_run)


@command(help={"recipe": "name of a recipe"})
def data(_, recipe=""):
    """Make and verify a recipe's dataset."""
    from recipes import prepare

    return prepare.data(recipe)


@command(help={"recipe": "name of a recipe"})
def weights(_, recipe=""):
    """Make and verify a recipe's weights."""
    from recipes import prepare

    return prepare.weights(recipe)


@command(name="list", default=True, help={"json": "one JSON document"})
def recipes_list(_, json=False):
    """List the recipes: name, matrix, hardware, purpose."""
    from recipes import catalogue

    return catalogue.show_all(as_json=json)


@command(name="show", positional=["recipe"], help={"recipe": "name of a recipe"})
def recipes_show(_, recipe):
    """Print the composed configuration of a recipe."""
    from recipes import catalogue

    return catalogue.show(recipe)


@command(name="diff", positional=["first", "second"], help={"first": "a recipe", "second": "another"})
def recipes_diff(_, first, second):
    """Print the keys in which two recipes differ."""
    from recipes import catalogue

    return catalogue.show_difference(first, second)


@command(help={"matrix": "version matrix", "check": "resolve again and compare, write nothing"})
def lock(_, matrix="cpu", check=False):
    """Resolve a matrix into its hashed lock, or check that the lock is up to date."""
    import lock

    return lock.check(matrix) if check else lock.write(matrix)


@command(
    help={
        "k": "run the tests whose names match, pytest's -k",
        "quick": "leave out what takes long (trainings, compilations)",
        "args": "further arguments for pytest, in one text",
    }
)
def test(_, k=None, quick=False, args=""):
    """Run the tests; builds the emulated NPU first where it is missing."""
    import shlex
    import subprocess

    if code := subprocess.run([sys.executable, "-m", "emulator.site"], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        return code
    chosen = [*(["-k", k] if k else []), *(["-m", "not slow"] if quick else []), *shlex.split(args)]
    command = [sys.executable, "-m", "pytest", "--durations=15", "--durations-min=1", *chosen]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


@command(
    help={
        "recipe": "what is trained",
        "steps": "steps of each of four trainings; 0 leaves them out",
        "rounds": "repetitions of what is short",
    }
)
def bench(_, recipe="smoke", steps=STEPS, rounds=ROUNDS):
    """Measure the command line and the launcher against their targets (some minutes, mostly the trainings)."""
    from recipes.bench import bench

    return bench(recipe, steps, rounds)


namespace = Collection(train, data, weights, lock, test, bench)
namespace.add_collection(Collection("recipes", recipes_list, recipes_show, recipes_diff))
