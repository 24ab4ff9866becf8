"""The command line: one task, one verb. `invoke --list` shows the verbs, `invoke --help VERB` its arguments.

Imports stay inside the tasks, so that a command loads only what it needs.
"""

import os
import sys
from pathlib import Path

from invoke import Collection

from cli import command, whole

ROOT = Path(__file__).resolve().parent
NODES, STEPS, ROUNDS = whole("--nodes", 0), whole("--steps", 10), whole("--rounds", 7)
COMPOSED = {  # what names a composed recipe
    "recipe": "name of a recipe (see `invoke recipes`), or a file that ends in .yaml",
    "matrix": "version matrix, else the recipe's own",
    "set": "KEY=VALUE, any key of the recipe; +KEY=VALUE adds one; can be repeated",
}


@command(
    iterable=["set"],
    help={
        **COMPOSED,
        "nodes": "number of machines, else the recipe's own",
        "dry-run": "print the command and its environment, start nothing",
        "rehearse": "run the recipe in miniature on emulated devices",
        "root": "with --rehearse: a folder with checkouts of the matrix's commits",
        "any-commit": "with --root: other commits too; the verdict says so",
        "run-dir": "where the run is kept; that of an earlier run resumes it",
    },
)
def train(
    _, recipe="", matrix=None, nodes=NODES, set=None, dry_run=False, rehearse=False, root=None, any_commit=False,
    run_dir=None,
):  # fmt: skip
    """Train a recipe: compose, check, launch, watch; or rehearse it on emulated devices."""
    from recipes.order import Order
    from recipes.train import train

    return train(Order(recipe, matrix, nodes, set or (), run_dir, rehearse, root, any_commit, dry_run))


LANGUAGE = "en or zh"


@command(
    iterable=["facts"],
    help={
        **{name: COMPOSED[name] for name in ("recipe", "matrix")},
        "facts": "judge the facts in this file instead of this machine; can be repeated",
        "save": "write this machine's facts into a file",
        "cluster": "every node of the Ray cluster that runs, one by one and against each other",
        "deep": "small programs on the device too (a minute)",
        "json": "one JSON document",
        "lang": LANGUAGE,
    },
)
def doctor(
    _, recipe="", matrix=None, facts=None, save=None, cluster=False, deep=False, json=False, lang="en"
):  # fmt: skip
    """Will this machine, container and environment work? Facts, checks, and what to do about each finding."""
    from recipes.doctor import Asked, run

    return run(Asked(recipe, matrix, facts or (), save, cluster, deep, json, lang))


PATCHED = {
    "matrix": "version matrix, else performance",
    "root": "folder with checkouts (verl, MindSpeed, Megatron-LM, vllm-ascend) or packages, else the environment's",
    "check": "write nothing; exit code 1 says that there is something to do",
    "json": "one JSON document",
}


@command(
    iterable=["set"],
    help={
        **COMPOSED,
        "nodes": "number of machines, else the recipe's own; also says which numbers fit",
        "json": "one JSON document",
    },
)
def lint(_, recipe="", matrix=None, nodes=NODES, set=None, json=False):
    """Judge a recipe without running it: sizes, keys, switches, environment, memory."""
    from recipes.lint import report

    return report.run(recipe, matrix, nodes, set, json)


@command(
    positional=["problem"],
    help={"problem": "id of a row, as F3; left out, all", "json": "one JSON document", "lang": LANGUAGE},
)
def problems(_, problem, json=False, lang="en"):
    """Show the table of known problems, or one of them in full."""
    from checks import listing

    return listing.show(problem, json, lang)


@command(
    positional=["log"],
    iterable=["also"],
    help={
        "log": "a log, plain or gzipped, a run directory, or - for standard input",
        "also": "a further log of the same run; can be repeated",
        "json": "one JSON document",
        "lang": LANGUAGE,
    },
)
def triage(_, log, also=None, json=False, lang="en"):
    """Say what went wrong in a run: the first cause, with its line and what to do. Exit code 3: nothing known."""
    from checks.triage import command
    from recipes.lint.run import findings_of_run

    return command.run(log, also or (), json, lang, findings_of_run)


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
    """List the recipes: name, matrices, hardware, nodes, purpose."""
    from recipes import catalogue

    return catalogue.show_all(as_json=json)


@command(
    name="show",
    positional=["recipe"],
    help={
        "recipe": "name of a recipe",
        "matrix": "version matrix, else the recipe's own",
        "changed": "only what differs from verl's defaults, a key a line",
    },
)
def recipes_show(_, recipe, matrix=None, changed=False):
    """Print the composed configuration of a recipe."""
    from recipes import catalogue

    return catalogue.show(recipe, matrix, changed)


@command(
    name="diff",
    positional=["first", "second"],
    help={"first": "a recipe", "second": "another", "matrix": "version matrix, else the recipes' own"},
)
def recipes_diff(_, first, second, matrix=None):
    """Print the keys in which two recipes differ."""
    from recipes import catalogue

    return catalogue.show_difference(first, second, matrix)


@command(
    name="compare",
    positional=["first", "second"],
    help={"first": "folder of a rehearsal, or of another run on emulated devices", "second": "another"},
)
def recipes_compare(_, first, second):
    """Print which operators, counts and numbers differ between two rehearsals."""
    from recipes.rehearsal import comparison

    return comparison.compare(first, second)


@command(name="list", default=True, help=PATCHED)
def patches_list(_, matrix=None, root=None, check=False, json=False):
    """Say of every patch of upstream: pending, applied, not needed or drifted."""
    from patches import command

    return command.show(matrix, root, check, json)


@command(name="apply", help=PATCHED)
def patches_apply(_, matrix=None, root=None, check=False, json=False):
    """Apply every patch that is pending, all or none."""
    from patches import command

    return command.apply(matrix, root, check, json)


@command(name="revert", help=PATCHED)
def patches_revert(_, matrix=None, root=None, check=False, json=False):
    """Put back the original bytes of every patched file, whatever the matrix."""
    from patches import command

    return command.revert(root, check, json)


@command(name="diff", help=PATCHED)
def patches_diff(_, matrix=None, root=None, check=False, json=False):
    """Print what the patches change, as unified differences."""
    from patches import command

    return command.diff(matrix, root, check, json)


@command(help={"matrix": "version matrix, else all", "check": "resolve again and compare, write nothing"})
def lock(_, matrix=None, check=False):
    """Resolve a matrix into its hashed lock, or check that the lock is up to date."""
    import lock

    return lock.run(matrix, check)


@command(
    iterable=["mirror"],
    help={
        "matrix": "performance, commercial, or cpu for machines without an NPU; else performance, in an image its own",
        "print": "print the script that runs the image on this host, build nothing",
        "facts": "with --print: for the host of this file (`python3 -m checks.facts > FILE` there)",
        "dry-run": "print the command that builds, build nothing",
        "base": "another base image, best with its digest (NAME@sha256:…)",
        "mirror": "NAME=URL, where a component's source is fetched instead; can be repeated",
        "snapshot": "time of Debian's or Ubuntu's archive (20251031T000000Z), not older than the base; else today's",
        "release": "refuse a base without a digest and a checkout with edits",
        "tag": "name of the image, else ascend-rl:MATRIX",
        "engine": "docker, podman or buildah, else the first that is installed",
    },
)
def image(
    _, matrix=None, print=False, facts=None, dry_run=False, base=None, mirror=None, release=False, tag=None,
    engine=None, snapshot=None,
):  # fmt: skip
    """Build the image of a matrix, or print the exact command that runs it on this host."""
    from image.build import Asked, run

    return run(Asked(matrix, print, facts, dry_run, base, mirror or (), release, tag, engine, snapshot))


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
    workers = [] if k or args else ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "--durations=15", "--durations-min=1", *workers, *chosen]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


@command(
    help={
        "recipe": "what is trained",
        "steps": "steps of each of four trainings; 0 leaves them out",
        "rounds": "repetitions of what is short",
    }
)
def bench(_, recipe="smoke", steps=STEPS, rounds=ROUNDS):
    """Measure the command line, the launcher and patches against their targets (some minutes, mostly the trainings)."""
    from recipes.bench import bench

    return bench(recipe, steps, rounds)


namespace = Collection(train, lint, doctor, triage, problems, data, weights, lock, image, test, bench)
namespace.add_collection(Collection("recipes", recipes_list, recipes_show, recipes_diff, recipes_compare))
namespace.add_collection(Collection("patches", patches_list, patches_apply, patches_revert, patches_diff))
