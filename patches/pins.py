"""Fingerprints of patched files: `pins.lock` holds, per matrix and file, the sha256 before and after all patches.

python -m patches.pins UPSTREAM_ROOT            writes it from checkouts UPSTREAM_ROOT/performance and …/commercial
python -m patches.pins --check MATRIX ROOT      1 where files of a patched ROOT are not those of the lock
"""

import json
import sys
from pathlib import Path

from errors import UserError
from patches import catalogue, engine, journal, places
from patches.places import Place

LOCK = Path(__file__).with_name("pins.lock")
Pins = dict[str, dict[str, str | None]]


def load() -> dict[str, Pins]:
    """Matrix to file to {before, after}; before is None for files that patches add."""
    return json.loads(LOCK.read_text())


def made(matrix: str, place: Place) -> Pins:
    """The pins of a tree that is not patched. Raises UserError where a patch has drifted or is there already."""
    judged = engine.judge(catalogue.patches(matrix), place)
    wrong = [v for v in judged.verdicts if v.state in ("drifted", "applied")]
    if wrong:
        listed = "".join(f"\n  {v.patch.id}: {v.state} {v.reason}" for v in wrong)
        raise UserError(f"{place}: expected files of the pinned commits without patches, found:{listed}", code=1)
    return {
        place.short(path): {"before": journal.digest(now), "after": journal.digest(then)}
        for path, (now, then) in sorted(judged.changes.items())
    }


def differences(matrix: str, place: Place) -> list[str]:
    """What of a patched tree is not as the lock says, a line each.

    In an environment: of the packages that are installed; what a checkout has beside them is not there.
    """
    found = []
    for name, pin in load()[matrix].items():
        path = _in(place, name)
        if path is None:
            continue
        actual = journal.digest(journal.read(path))
        if actual != pin["after"]:
            state = "missing" if actual is None else "not patched" if actual == pin["before"] else "another file"
            found.append(f"{name}: expected {pin['after'][:12]}, found {state}")
    return found


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--check", matrix, root]:
            found = differences(matrix, places.place(root))
            print("\n".join(found) or f"{root}: {len(load()[matrix])} files as in pins.lock")
            return int(bool(found))
        case [root]:
            pins = {matrix: made(matrix, places.place(Path(root) / matrix)) for matrix in catalogue.MATRICES}
            LOCK.write_text(json.dumps(pins, indent=1) + "\n")
            return 0
    print(__doc__, file=sys.stderr)
    return 2


def _in(place: Place, name: str) -> Path | None:
    """A file of the lock in this place: a tree of checkouts, packages beside each other, or an environment."""
    checkout, rest = name.split("/", 1)
    package = rest.split("/")[0]
    if place.root is None:
        folder = place.folder(package)
        return folder / rest if folder else None
    return place.home / name if (place.home / checkout / package).is_dir() else place.home / rest


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
