"""What was asked for on the command line of `invoke train`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """A recipe to train or to rehearse, and how."""

    recipe: str
    matrix: str | None = None
    nodes: int = 0  # 0: the recipe's own
    settings: Sequence[str] = ()
    run_dir: str | None = None
    rehearse: bool = False
    root: str | None = None  # with `rehearse`: checkouts of the matrix's commits
    any_commit: bool = False
    dry_run: bool = False
