"""Edits that find their place by qualified name and shape.

Shapes are compared as Python reads them, so that line breaks, comments, quotes and trailing commas do not matter. What
is left keeps its formatting, what is inserted takes the file's indentation and line endings.
"""

import ast
import difflib
import hashlib
import io
import textwrap
import tokenize
from collections.abc import Iterator, Sequence

import libcst as cst

from patches.patch import Drifted, Edit, NotNeeded

_BLANK = cst.Module([])


def replace(scope: str, old: str, new: str, *, fixed: str | None = None) -> Edit:
    """Replaces the one place in `scope` ("" is the module) where the statements `old` stand in a row by `new`.

    `...` as a statement of `new` stands for what was found, with its formatting: "guard()\\n..." inserts before,
    "with lock:\\n    ..." wraps. `fixed`: statements in `scope` that show that upstream has mended the fault.
    """

    def edit(tree: cst.Module) -> cst.Module:
        place, wanted = find(tree, scope), _shapes(old)
        if fixed is not None and _runs(place, _shapes(fixed)):
            raise NotNeeded(f"{scope or 'the module'} has it: {_short(fixed)}")
        before, whole, after = _pieces(old, new)
        found = _runs(place, wanted)
        present = [bool(_runs(place, whole))] if whole else _beside(found, len(wanted), before, after)
        if all(present):
            return tree
        if any(present) or len(found) != 1:
            seen = "a part of what the patch inserts" if any(present) else _nearest(place, old, len(found))
            raise Drifted(f"{_short(old)!r} once in {scope or 'the module'}", seen)
        block, start = found[0]
        rest = start + len(wanted)
        made = _statements(tree, new, [*block.body[start:rest]])
        changed = block.with_changes(body=[*block.body[:start], *made, *block.body[rest:]])
        return changed if block is tree else _put(tree, block, changed)

    return edit


def either(*edits: Edit) -> Edit:
    """The one of several edits whose shape is there, for places that differ between versions of upstream."""

    def edit(tree: cst.Module) -> cst.Module:
        reasons = []
        for each in edits:
            try:
                return each(tree)
            except Drifted as reason:
                reasons.append(reason)
        raise reasons[0] if len(reasons) == 1 else Drifted("one of several shapes", "; ".join(map(str, reasons)))

    return edit


def append(scope: str, new: str, *, fixed: str | None = None) -> Edit:
    """Adds statements at the end of a class, function or ("") module; `fixed` as in `replace`."""

    def edit(tree: cst.Module) -> cst.Module:
        place = find(tree, scope)
        if fixed is not None and _runs(place, _shapes(fixed)):
            raise NotNeeded(f"{scope or 'the module'} has it: {_short(fixed)}")
        if _runs(place, _shapes(new)):
            return tree
        names = {node.name for node in ast.parse(textwrap.dedent(new)).body if hasattr(node, "name")}
        if taken := sorted(names & {_name(node) for node in _block(place).body}):
            raise Drifted(f"no {taken[0]} in {scope or 'the module'}", "another one of that name")
        block = _block(place)
        changed = block.with_changes(body=[*block.body, *_statements(tree, new, [])])
        return changed if block is tree else _put(tree, block, changed)

    return edit


def swap(scope: str, old: str, new: str, *, times: int = 1) -> Edit:
    """Replaces the expression `old`, which stands `times` in `scope`, by `new`; all else keeps its formatting."""

    def edit(tree: cst.Module) -> cst.Module:
        place = find(tree, scope)
        swapped = _Swap(old, new)
        changed = place.visit(swapped)
        if (swapped.old, swapped.new) == (0, times):
            return tree
        if (swapped.old, swapped.new) != (times, 0):
            seen = f"it {swapped.old} times, {new!r} {swapped.new} times"
            raise Drifted(f"{old!r} {times} times in {scope or 'the module'}", seen)
        return changed if place is tree else _put(tree, place, changed)

    return edit


def imports(new: str) -> Edit:
    """Adds an import after the module's last one of the top level."""

    def edit(tree: cst.Module) -> cst.Module:
        shapes = [_shape(node) if _is_import(node) else "" for node in tree.body]
        if _shapes(new)[0] in shapes:
            return tree
        last = max((i for i, shape in enumerate(shapes) if shape), default=-1)
        if last < 0:
            raise Drifted("an import at the top level", "none")
        made = _statements(tree, new, [])
        made[0] = made[0].with_changes(leading_lines=[])
        return tree.with_changes(body=[*tree.body[: last + 1], *made, *tree.body[last + 1 :]])

    return edit


def parameter(scope: str, new: str) -> Edit:
    """Adds a parameter with a default at the end of a function's own."""

    def edit(tree: cst.Module) -> cst.Module:
        function = find(tree, scope)
        made = cst.parse_statement(f"def f({new}): ...").params.params[0]
        given = [*function.params.params]
        known = {
            param.name.value: _BLANK.code_for_node(param.with_changes(comma=cst.MaybeSentinel.DEFAULT))
            for param in given
        }
        if made.name.value in known:
            if known[made.name.value].strip() != new:
                raise Drifted(f"no parameter {made.name.value}, or {new}", known[made.name.value].strip())
            return tree
        if len(given) > 1:  # laid out as the others are
            comma = given[-1].comma
            given[-1] = given[-1].with_changes(comma=given[-2].comma)
            made = made.with_changes(comma=comma)
        params = function.params.with_changes(params=[*given, made])
        return _put(tree, function, function.with_changes(params=params))

    return edit


def body(scope: str, new: str, *expected: str) -> Edit:
    """Replaces the body of a function, docstring kept; `expected` are fingerprints of bodies that it may replace."""

    def edit(tree: cst.Module) -> cst.Module:
        block = _block(find(tree, scope))
        kept = 1 if _is_docstring(block) else 0
        if [_shape(node) for node in block.body[kept:]] == _shapes(new):
            return tree
        if (found := fingerprint(tree, scope)) not in expected:
            raise Drifted(f"the body of {scope} with fingerprint {' or '.join(expected)}", found)
        made = _statements(tree, new, [])
        if not kept:
            made[0] = made[0].with_changes(leading_lines=made[0].leading_lines[1:])
        return _put(tree, block, block.with_changes(body=[*block.body[:kept], *made]))

    return edit


def fingerprint(tree: cst.Module, scope: str) -> str:
    """16 digits over the tokens of a function's body, without docstring, comments and layout."""
    block = _block(find(tree, scope))
    nodes = block.body[1:] if _is_docstring(block) else block.body
    text = "".join(_BLANK.code_for_node(node) for node in nodes)
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(text.replace("\r\n", "\n")).readline)
    return hashlib.sha256("\0".join(t.string for t in tokens if t.type not in layout).encode()).hexdigest()[:16]


def only_where(scope: str, shape: str, reason: str) -> Edit:
    """Not an edit but a condition: NotNeeded(reason) unless `scope` is there and has the statements `shape`."""

    def edit(tree: cst.Module) -> None:
        try:
            place = find(tree, scope)
        except Drifted:
            raise NotNeeded(reason) from None
        if not _runs(place, _shapes(shape)):
            raise NotNeeded(reason)

    return edit


def find(tree: cst.Module, scope: str) -> cst.CSTNode:
    """The one class or function of that qualified name, the module for ""."""
    if not scope:
        return tree
    names = _Named(scope)
    tree.visit(names)
    if len(names.found) != 1:
        alike = [name for name in names.seen if name.count(".") == scope.count(".")]
        close = difflib.get_close_matches(scope, alike or names.seen, 1, 0)
        found = (
            f"{len(names.found)} of them" if names.found else f"none; the nearest is {close[0]}" if close else "none"
        )
        raise Drifted(f"one {scope}", found)
    return names.found[0]


class _Named(cst.CSTVisitor):
    """Classes and functions with the dotted name `wanted`, and the names of all that were seen on the way."""

    def __init__(self, wanted: str):
        self.wanted, self.path, self.found, self.seen = wanted.split("."), [], [], []

    def visit_ClassDef(self, node):
        return self._enter(node)

    def visit_FunctionDef(self, node):
        return self._enter(node)

    def leave_ClassDef(self, original_node):
        self.path.pop()

    def leave_FunctionDef(self, original_node):
        self.path.pop()

    def on_visit(self, node):
        return isinstance(node, _HOLDERS) and super().on_visit(node)

    def _enter(self, node):
        self.path.append(node.name.value)
        self.seen.append(".".join(self.path))
        if self.path == self.wanted:
            self.found.append(node)
        return self.path == self.wanted[: len(self.path)]


class _Swap(cst.CSTTransformer):
    """Counts two expressions and replaces the first by the second; does not look into what it replaces."""

    def __init__(self, old: str, new: str):
        self.made = cst.parse_expression(new)
        self.shapes = ast.dump(ast.parse(old, mode="eval")), ast.dump(ast.parse(new, mode="eval"))
        self.kinds = {type(cst.parse_expression(old)), type(self.made)}
        self.old = self.new = 0

    def on_visit(self, node):
        return self._which(node) is None

    def on_leave(self, original_node, updated_node):
        which = self._which(original_node)
        if which is None:
            return super().on_leave(original_node, updated_node)
        self.old, self.new = self.old + (which == 0), self.new + (which == 1)
        return self.made if which == 0 else updated_node

    def _which(self, node) -> int | None:
        """1: the new expression, 0: the old one."""
        if type(node) not in self.kinds:
            return None
        try:
            shape = ast.dump(ast.parse(f"({_BLANK.code_for_node(node)})", mode="eval"))
        except SyntaxError:
            return None
        return 1 if shape == self.shapes[1] else 0 if shape == self.shapes[0] else None


def _put(tree: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module:
    """The tree with `new` for the block, class or function `old`; goes only where statements are."""
    return tree.visit(_Put(old, new))


class _Put(cst.CSTTransformer):
    def __init__(self, old: cst.CSTNode, new: cst.CSTNode):
        self.old, self.new = old, new

    def on_visit(self, node):
        return node is not self.old and isinstance(node, _HOLDERS)

    def on_leave(self, original_node, updated_node):
        return self.new if original_node is self.old else updated_node


def _blocks(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Every block of statements inside a node, itself included."""
    if isinstance(node, cst.Module | cst.IndentedBlock):
        yield node
        inside = node.body
    else:
        inside = node.children
    for each in inside:
        if isinstance(each, _HOLDERS):
            yield from _blocks(each)


# Nodes in which statements can stand.
_HOLDERS = (
    cst.Module, cst.IndentedBlock, cst.BaseCompoundStatement, cst.Else, cst.Finally, cst.ExceptHandler,
    cst.ExceptStarHandler, cst.MatchCase,
)  # fmt: skip


def _runs(place: cst.CSTNode, shapes: Sequence[str]) -> list[tuple[cst.CSTNode, int]]:
    """Where in `place` statements of these shapes stand in a row: block and index."""
    kind = shapes[0].split("(", 1)[0]
    found = []
    for block in _blocks(place):
        for start in range(len(block.body) - len(shapes) + 1):
            if kind not in _kinds(block.body[start]):
                continue
            if all(_shape(block.body[start + i]) == shape for i, shape in enumerate(shapes)):
                found.append((block, start))
    return found


def _kinds(node: cst.CSTNode) -> set[str]:
    """Names of ast classes that the statement may be: a cheap test before its text is made and read."""
    if not isinstance(node, cst.SimpleStatementLine):
        name = type(node).__name__
        return {name, f"Async{name}"}
    return {type(node.body[0]).__name__.replace("AnnAssign", "Assign"), type(node.body[0]).__name__}


def _shape(node: cst.CSTNode) -> str:
    try:
        return _shapes(_BLANK.code_for_node(node))[0]
    except (SyntaxError, IndexError):
        return ""


def _shapes(code: str) -> list[str]:
    return [ast.dump(node) for node in ast.parse(textwrap.dedent(code)).body]


def _pieces(old: str, new: str) -> tuple[list[str], list[str], list[str]]:
    """Shapes that show that `new` is there: before `...` of the top level, else of all of it, after `...`."""
    nodes = ast.parse(textwrap.dedent(new)).body
    marks = [i for i, node in enumerate(nodes) if _is_mark(node)]
    if marks:
        return _dumped(nodes[: marks[0]]), [], _dumped(nodes[marks[0] + 1 :])
    filled = _Filled(ast.parse(textwrap.dedent(old)).body)
    return [], _dumped([filled.visit(node) for node in nodes]), []


def _dumped(nodes: list[ast.AST]) -> list[str]:
    return [ast.dump(node) for node in nodes]


def _beside(found, count: int, before: list[str], after: list[str]) -> list[bool]:
    """Whether the one place of what was looked for has these shapes before it and after it, in its block."""
    if len(found) != 1:
        return [False]
    block, start = found[0]
    shapes = [_shape(node) for node in block.body]
    pairs = (before, shapes[:start]), (after, shapes[start + count :])
    return [_contains(given, part) for part, given in pairs if part]


def _contains(given: list[str], part: list[str]) -> bool:
    return any(given[i : i + len(part)] == part for i in range(len(given) - len(part) + 1))


class _Filled(ast.NodeTransformer):
    """`...` replaced by statements."""

    def __init__(self, statements):
        self.statements = statements

    def visit_Expr(self, node):
        return self.statements if _is_mark(node) else node


def _is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _statements(tree: cst.Module, code: str, found: list[cst.CSTNode]) -> list[cst.CSTNode]:
    """`code` as statements in the file's style, with `found` for `...`; keeps the blank lines and comments before."""
    given = cst.parse_module(textwrap.dedent(code).strip("\n") + "\n", config=tree.config_for_parsing).visit(_Bare())
    first = given.body[0].with_changes(leading_lines=[*given.header, *given.body[0].leading_lines])
    nodes = [first, *given.body[1:]]
    if found and not _is_cst_mark(first):
        nodes[0] = first.with_changes(leading_lines=[*found[0].leading_lines, *first.leading_lines])
        found = [found[0].with_changes(leading_lines=[]), *found[1:]]
    elif not found and not first.leading_lines:
        nodes[0] = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    filled = [node.visit(_Fill(found)) if not _is_cst_mark(node) else node for node in nodes]
    return [part for node in filled for part in (found if _is_cst_mark(node) else [node])]


class _Bare(cst.CSTTransformer):
    """Blank lines without the indentation of their block."""

    def leave_EmptyLine(self, original_node, updated_node):
        return updated_node if updated_node.comment else updated_node.with_changes(indent=False)


class _Fill(cst.CSTTransformer):
    """`...` in blocks replaced by statements."""

    def __init__(self, found):
        self.found = found

    def leave_SimpleStatementLine(self, original_node, updated_node):
        return cst.FlattenSentinel(self.found) if _is_cst_mark(original_node) else updated_node


def _is_cst_mark(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.SimpleStatementLine)
        and isinstance(node.body[0], cst.Expr)
        and isinstance(node.body[0].value, cst.Ellipsis)
    )


def _block(place: cst.CSTNode) -> cst.CSTNode:
    return place if isinstance(place, cst.Module) else place.body


def _is_import(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Import | cst.ImportFrom)


def _name(node: cst.CSTNode) -> str:
    return node.name.value if isinstance(node, cst.ClassDef | cst.FunctionDef) else ""


def _is_docstring(block: cst.CSTNode) -> bool:
    first = block.body[0] if block.body else None
    return isinstance(first, cst.SimpleStatementLine) and isinstance(
        getattr(first.body[0], "value", None), cst.SimpleString | cst.ConcatenatedString
    )


def _short(code: str) -> str:
    lines = textwrap.dedent(code).strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} …"


def _nearest(place: cst.CSTNode, old: str, count: int) -> str:
    """What stands in `place` instead of the first statement of `old`."""
    if count:
        return f"it {count} times"
    wanted = textwrap.dedent(old).strip().splitlines()[0]
    lines = {line.strip() for line in _BLANK.code_for_node(place).splitlines()}
    close = difflib.get_close_matches(wanted, sorted(lines), 1, 0.5)
    return repr(close[0]) if close else "nothing like it"
