"""The command line: one task, one verb. `invoke --list` shows the verbs, `invoke --help VERB` its arguments.

Imports stay inside the tasks, so that a command loads only what it needs.
"""

import functools

from invoke import Collection, Exit, task

from errors import UserError


def command(*arguments, **options):
    """invoke's `task`, with a user's mistake shown as a message and an exit code instead of a traceback."""

    def decorate(body):
        @functools.wraps(body)
        def guarded(*args, **kwargs):
            try:
                code = body(*args, **kwargs)
            except UserError as error:
                raise Exit(f"error: {error}", code=error.code) from None
            if code:
                raise Exit(code=code)

        return task(*arguments, **options)(guarded)

    if len(arguments) == 1 and callable(arguments[0]):
        body, arguments = arguments[0], ()
        return decorate(body)
    return decorate


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
def train(_, recipe, matrix=None, nodes=0, set=None, dry_run=False, rehearse=False, root=None, run_dir=None):
    """Train a recipe: compose, check, launch, watch."""
    from recipes.train import Order, train

    return train(Order(recipe, matrix, nodes, set, run_dir, rehearse, root), dry_run=dry_run)


@command(help={"recipe": "name of a recipe"})
def data(_, recipe):
    """Prepare a recipe's dataset."""
    from recipes import assets

    return assets.data(recipe)


@command(help={"recipe": "name of a recipe"})
def weights(_, recipe):
    """Make or convert a recipe's weights and verify them."""
    from recipes import assets

    return assets.weights(recipe)


@command(help={"matrix": "version matrix", "check": "resolve again and compare, write nothing"})
def lock(_, matrix="cpu", check=False):
    """Resolve a matrix into its hashed lock, or check that the lock is up to date."""
    import lock

    return lock.check(matrix) if check else lock.write(matrix)


namespace = Collection(train, data, weights, lock)
