"""Applies the patches to what is installed and compares fingerprints: python -m image.steps.patch MATRIX"""

import sys

from errors import UserError
from image.steps.step import StepError, run, say
from patches import catalogue, engine, pins, places


def apply_all(matrix: str) -> None:
    """All patches of the matrix, or none: a drift stops the build."""
    place = places.place(None)
    try:
        judged = engine.judge(catalogue.patches(matrix), place)
        if judged.drifted:
            first = judged.drifted[0]
            others = f" and {len(judged.drifted) - 1} more" if len(judged.drifted) > 1 else ""
            raise StepError(
                f"patch {first.patch.id} to fit {matrix}'s sources",
                f"{first.reason}{others} (drifted)",
                f"adapt patches/{first.patch.id.replace('-', '_')}.py or set matrix.toml back; see patches.list --root",
            )
        engine.apply(judged)
        if differing := pins.differences(matrix, place):
            raise StepError(
                f"the files of patches/pins.lock ({matrix}) after patching",
                f"{differing[0]}" + (f" and {len(differing) - 1} more" if len(differing) > 1 else ""),
                "make pins.lock anew from the commits of matrix.toml: python -m patches.pins UPSTREAM_ROOT",
            )
    except UserError as error:
        raise StepError("to patch the packages", str(error), "see the lines above") from None
    states = [verdict.state for verdict in judged.verdicts]
    say(f"{states.count('pending')} patches applied, {states.count('not needed')} not needed")


if __name__ == "__main__":
    sys.exit(run("patches", apply_all))
