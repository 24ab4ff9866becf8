"""What `invoke patches.*` prints: states, changes, differences; and the exit codes."""

import difflib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from errors import UserError
from patches import catalogue, engine, journal, places
from patches.engine import Judged, Verdict
from patches.places import Place

_COLOURS = {"applied": "green", "pending": "yellow", "not needed": "dim", "drifted": "bold red"}


def show(matrix: str | None, root: str | None, check: bool, as_json: bool) -> int:
    """States of all patches; 1 where one has drifted, with `check` also where one is pending."""
    judged = _judged(matrix, root)
    _print(judged, as_json)
    return int(bool(judged.drifted) or (check and bool(judged.changes)))


def apply(matrix: str | None, root: str | None, check: bool, as_json: bool) -> int:
    """Applies all patches that are pending, together; with `check` it writes nothing and 1 says that it would."""
    judged = _judged(matrix, root)
    if not check and not judged.drifted:
        engine.apply(judged)
        done = [verdict for verdict in judged.verdicts if verdict.state == "pending"]
        for verdict in done:
            verdict.state = "applied"
    _print(judged, as_json, written=not check and not judged.drifted)
    return int(bool(judged.drifted) or (check and bool(judged.changes)))


def revert(root: str | None, check: bool, as_json: bool) -> int:
    """Puts the original bytes back; with `check` it writes nothing and 1 says that it would."""
    place = places.place(root)
    paths = list(journal.load(place.home).files) if check else engine.revert(place)
    names = [place.short(path) for path in paths]
    if as_json:
        print(json.dumps({"place": str(place), "files": names, "written": not check}, indent=1))
    else:
        print("\n".join(names))
        print(f"{place}: {len(names)} files {'would be' if check else 'are'} as they were")
    return int(check and bool(names))


def diff(matrix: str | None, root: str | None, check: bool, as_json: bool) -> int:
    """Unified differences from the originals to the patched files; with `check` 1 says that there are some to make."""
    judged = _judged(matrix, root)
    texts = {judged.place.short(path): _difference(judged.place, path, *both) for path, both in _both(judged).items()}
    if as_json:
        print(json.dumps({"place": str(judged.place), "differences": texts}, indent=1))
    elif sys.stdout.isatty():
        Console(soft_wrap=True).print(Syntax("".join(texts.values()), "diff", background_color="default"))
    else:
        print("".join(texts.values()), end="")
    if judged.drifted:
        raise UserError(_drift(judged.drifted), code=1)
    return int(check and bool(judged.changes))


def _judged(matrix: str | None, root: str | None) -> Judged:
    place = places.place(root)
    if (place.home / journal.FOLDER / "intent.json").exists():
        with journal.lock(place.home):
            pass
    return engine.judge(catalogue.patches(matrix), place)


def _print(judged: Judged, as_json: bool, written: bool = False) -> None:
    rows = [_row(judged.place, verdict) for verdict in judged.verdicts]
    if as_json:
        print(json.dumps({"place": str(judged.place), "written": written, "patches": rows}, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("patch", "state", "problem", "why, or what was found"):
        table.add_column(heading, overflow="fold")
    for row, verdict in zip(rows, judged.verdicts, strict=True):
        text = row["reason"] if row["reason"] and row["state"] in ("drifted", "not needed") else row["why"]
        table.add_row(row["id"], f"[{_COLOURS[verdict.state]}]{verdict.state}", row["problem"], text)
    console = Console(width=None if sys.stdout.isatty() else 240)
    console.print(table)
    counts = ", ".join(
        f"{sum(r['state'] == s for r in rows)} {s}" for s in _COLOURS if any(r["state"] == s for r in rows)
    )
    print(f"{judged.place}: {counts or 'no patches'}")
    if judged.drifted:
        print("nothing was written: drifted patches meet another upstream than they know; see --matrix")
    elif written:
        print(f"{len(judged.changes)} files written; `invoke patches.revert` puts them back")


def _row(place: Place, verdict: Verdict) -> dict:
    patch = verdict.patch
    files = sorted({place.short(path) for path in verdict.files})
    return {
        "id": patch.id,
        "state": verdict.state,
        "problem": patch.problem,
        "matrices": list(patch.matrices),
        "why": patch.why,
        "upstream": patch.upstream,
        "reason": verdict.reason,
        "files": files,
    }


def _both(judged: Judged) -> dict[Path, tuple[bytes | None, bytes | None]]:
    """Original and patched content of every file that patches change, the applied ones included."""
    known = journal.load(judged.place.home)
    applied = {path: (known.original(path), journal.read(path)) for path in known.files}
    pending = {
        path: (applied[path][0] if path in applied else now, then) for path, (now, then) in judged.changes.items()
    }
    return dict(sorted({**applied, **pending}.items()))


def _difference(place: Place, path: Path, old: bytes | None, new: bytes | None) -> str:
    lines = [(content or b"").decode("utf-8", "replace").splitlines(keepends=True) for content in (old, new)]
    names = "/dev/null" if old is None else f"a/{place.short(path)}", f"b/{place.short(path)}"
    return "".join(line if line.endswith("\n") else line + "\n" for line in difflib.unified_diff(*lines, *names))


def _drift(drifted: list[Verdict]) -> str:
    return "drifted patches:\n" + "\n".join(f"  {verdict.patch.id}: {verdict.reason}" for verdict in drifted)
