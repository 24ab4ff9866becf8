"""Hooks on imports: another source for a module, an edit of its text, a function before or after it runs.

Nothing on disk changes. `drift` says what is hooked and why.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import defaultdict

_edits = defaultdict(list)  # module -> [(old, new, reason)]
_before = defaultdict(list)  # module -> functions called with the module before its code runs
_after = defaultdict(list)  # module -> functions called with the module once its code has run
_sources = {}  # module -> path of the file that is loaded in its place, or a function that fills the module


def edit(module, old, new, reason) -> None:
    """Replace a piece of text of a module's source when it is imported. ImportError if the text is not there."""
    _edits[module].append((old, new, reason))


def before(module):
    """Decorator: the function gets the module before its code runs; at once if the module is there already.

    It is there when it is the one that imports torch, and torch this package.
    """

    def register(function):
        _before[module].append(function)
        if module in sys.modules:
            function(sys.modules[module])
        return function

    return register


def after(module):
    """Decorator: the function gets the module once its code has run; at once if it is imported already."""

    def register(function):
        _after[module].append(function)
        if _imported(module):
            function(sys.modules[module])
        return function

    return register


def _imported(name):
    """Whether the module's code has run; a module that is being imported gets its hook from the loader."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def replace(module, source) -> None:
    """Load a module from another place:

    a path, or a function that fills the empty module. It need not exist otherwise.
    """
    _sources[module] = source


def activate() -> None:
    """Put the finder in front of the others."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds hooked modules through the other finders and hands them a loader that applies the hooks."""

    def __init__(self):
        self.searching = set()

    def find_spec(self, name, path=None, target=None):
        if name in _sources:
            return _replaced(name, _sources[name])
        if name in self.searching or not (name in _edits or name in _before or name in _after):
            return None
        self.searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching.discard(name)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _HookedLoader(name, spec.loader)
        return spec


def _replaced(name, source):
    if callable(source):
        return importlib.machinery.ModuleSpec(name, _Filler(source), origin="torch_npu.drift")
    return importlib.util.spec_from_file_location(name, source)


class _Filler(importlib.abc.Loader):
    """A module without a file."""

    def __init__(self, fill):
        self.fill = fill

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.fill(module)


class _HookedLoader(importlib.abc.Loader):
    """The module's own loader with the hooks around it."""

    def __init__(self, name, loader):
        self.name, self.loader = name, loader

    def __getattr__(self, attribute):
        return getattr(self.loader, attribute)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        for function in _before[self.name]:
            function(module)
        if _edits[self.name]:
            exec(compile(_edited(self.name, self.loader), module.__file__, "exec"), module.__dict__)
        else:
            self.loader.exec_module(module)
        for function in _after[self.name]:
            function(module)


def _edited(name, loader):
    text = loader.get_source(name)
    for old, new, reason in _edits[name]:
        if text.count(old) != 1:
            raise ImportError(
                f"The emulated NPU edits {name} ({reason}). Expected this text once, found it {text.count(old)} times:"
                f"\n{old}\nThe installed version differs from the one in matrix.toml: install that, or renew the edit "
                "in emulator/torch_npu/drift.py."
            )
        text = text.replace(old, new)
    return text
