"""Judges patches against a place and makes the files that they lead to, in memory; `journal` writes them.

judged = judge(patches, place)      # states and contents, nothing written
apply(judged)                       # all of them, or none
revert(place)                       # the bytes of before
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import libcst as cst

from errors import UserError
from patches import journal
from patches.patch import Added, Drifted, Edits, Lines, NotNeeded, Patch, State, Target
from patches.places import Place


@dataclass
class Verdict:
    """What was found of one patch: its state, the reason unless it is pending or applied, its files."""

    patch: Patch
    state: State
    reason: str = ""
    files: list[Path] = field(default_factory=list)


@dataclass
class Judged:
    """Verdicts on all patches, and files that must change: content now and then (None: not there)."""

    place: Place
    verdicts: list[Verdict]
    changes: dict[Path, tuple[bytes | None, bytes | None]]

    @property
    def drifted(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.state == "drifted"]


def judge(patches: Iterable[Patch], place: Place) -> Judged:
    """Tries all patches in memory. Files that an earlier version of a patch left are judged from their originals."""
    patches = list(patches)
    judged = _judge(patches, place, {})
    if judged.drifted:
        known = journal.load(place.home)
        again = _judge(patches, place, {p: known.original(p) for p in known.files if known.is_intact(p)})
        return again if not again.drifted else judged
    return judged


def apply(judged: Judged) -> None:
    """Writes what was judged, together. Raises UserError, and writes nothing, where a patch has drifted."""
    if judged.drifted:
        lines = "\n".join(f"  {verdict.patch.id}: {verdict.reason}" for verdict in judged.drifted)
        raise UserError(f"drifted patches, nothing was written:\n{lines}", code=1)
    place = judged.place
    with journal.lock(place.home):
        known = journal.load(place.home)
        for path, (now, _) in judged.changes.items():
            if journal.digest(journal.read(path)) != journal.digest(now):
                raise UserError(f"{path}: expected it unchanged since it was read, found it changed; run it again")
            if path in known.files and not known.is_intact(path) and now is not None and _has_ours(judged, path):
                raise UserError(
                    f"{path}: expected it as patches.apply left it, found other changes, too; undo them, or install "
                    "the package anew",
                    code=1,
                )
        if judged.changes:
            named = [v.patch.id for v in judged.verdicts if v.state in ("pending", "applied")]
            journal.write(place.home, {path: then for path, (_, then) in judged.changes.items()}, named)


def revert(place: Place) -> list[Path]:
    """Gives every patched file its original bytes, removes ours; the files that changed."""
    with journal.lock(place.home):
        known = journal.load(place.home)
        foreign = [path for path in known.files if not known.is_intact(path)]
        if foreign := [path for path in foreign if journal.digest(journal.read(path)) != known.files[path].before]:
            listed = "\n".join(f"  {place.short(path)}" for path in foreign)
            raise UserError(
                f"expected files as patches.apply left them, found others, nothing was written:\n{listed}\n"
                "undo the changes by hand, or install the packages anew",
                code=1,
            )
        changes = {path: known.original(path) for path in known.files}
        if changes:
            journal.write(place.home, changes, [])
        return list(changes)


class _Draft:
    """Files in memory, the edits so far included. Each file is read and parsed once."""

    def __init__(self, base: dict[Path, bytes | None]):
        self.base, self.now, self.trees = base, {}, {}
        self.contents: dict[Path, bytes | None] = {}

    def content(self, path: Path) -> bytes | None:
        if path in self.trees:
            return self.trees[path].bytes
        if path not in self.contents:
            self.now[path] = journal.read(path)
            self.contents[path] = self.base.get(path, self.now[path])
        return self.contents[path]

    def tree(self, path: Path) -> cst.Module:
        if path not in self.trees:
            content = self.content(path)
            try:
                tree = cst.parse_module(content)
            except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError) as error:
                raise Drifted(f"Python in {path.name}", str(error).splitlines()[0]) from None
            if tree.bytes != content:
                raise Drifted(f"{path.name} in one encoding", "text that would not come back as it was")
            self.trees[path] = tree
        return self.trees[path]

    def put(self, path: Path, made: cst.Module | bytes) -> None:
        if isinstance(made, bytes):
            self.contents[path] = made
        else:
            self.trees[path] = made

    def changes(self) -> dict[Path, tuple[bytes | None, bytes | None]]:
        found = {path: (now, self.content(path)) for path, now in self.now.items()}
        return {path: both for path, both in found.items() if both[0] != both[1]}


def _judge(patches: list[Patch], place: Place, base: dict[Path, bytes | None]) -> Judged:
    draft = _Draft(base)
    verdicts = [_verdict(patch, place, draft) for patch in patches]
    return Judged(place, verdicts, draft.changes())


def _verdict(patch: Patch, place: Place, draft: _Draft) -> Verdict:
    """State of one patch; the draft is left as it was unless the patch is pending."""
    made, states, reasons, files, wanted = {}, Counter(), [], [], False
    for target in patch.targets:
        try:
            for path, new, is_new in _steps(target, place, draft):
                files.append(path)
                states.update("pending" if new_one else "applied" for new_one in is_new)
                made[path] = new
                wanted |= not isinstance(target, Added)
        except NotNeeded as reason:
            reasons.append(str(reason))
        except Drifted as reason:
            return Verdict(patch, "drifted", f"{_named(target)}: {reason}", files)
    reason = "; ".join(dict.fromkeys(reasons))
    if not wanted:
        return Verdict(patch, "not needed", reason)
    if len(states) > 1:
        found = f"{states['applied']} of {states.total()}"
        return Verdict(patch, "drifted", f"expected all of its edits made or none, found {found}", files)
    for path, new in made.items():
        draft.put(path, new)
    return Verdict(patch, "pending" if states["pending"] else "applied", reason, files)


def _steps(target: Target, place: Place, draft: _Draft) -> Iterator[tuple[Path, cst.Module | bytes, list[bool]]]:
    """Files of a target: path, what it becomes, for each edit whether it changes something."""
    package = target.package if isinstance(target, Lines) else target.module.split(".")[0]
    if place.folder(package) is None:
        raise NotNeeded(f"{package} is not there")
    match target:
        case Edits():
            path = place.module(target.module)
            if path is None and target.optional:
                raise NotNeeded(f"{target.module} is not there")
            if path is None:
                raise Drifted(f"the module {target.module}", "none")
            trees = [draft.tree(path)]
            trees += (new for edit in target.edits if (new := edit(trees[-1])) is not None)
            yield path, trees[-1], [new is not old for old, new in pairwise(trees)]
        case Added():
            path = place.module(target.module, new=True)
            content = draft.content(path)
            if content not in (None, target.source):
                raise Drifted("no such file, or ours", "another one")
            yield path, target.source, [content is None]
        case Lines():
            for path in place.files(target.package, target.pattern):
                content = draft.content(path)
                new = target.edit(content.decode()).encode()
                yield path, new, [new != content]


def _named(target: Target) -> str:
    return target.pattern if isinstance(target, Lines) else target.module


def _has_ours(judged: Judged, path: Path) -> bool:
    return any(path in verdict.files and verdict.state == "applied" for verdict in judged.verdicts)
