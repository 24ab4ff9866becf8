"""Runs `train` as the command line does, with the fake trainer in verl's place and without the emulator.

python launcher.py RECIPE [--run-dir DIR] [--set KEY=VALUE]… [--dry-run]
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from errors import UserError
from recipes import train


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--run-dir")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    train._site = lambda *_, **__: None
    train._facts = lambda *_: None
    try:
        return train.train(train.Order(given.recipe, settings=given.set, run_dir=given.run_dir), given.dry_run)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
