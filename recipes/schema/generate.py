"""Writes the data files beside this module: `python -m recipes.schema.generate PROJECT SOURCE [COMMIT]`.

PROJECT is verl, mindspeed or megatron-lm. SOURCE is a checkout, a git directory (bare or not) together with COMMIT, or
`installed` for the package of this Python environment; then COMMIT says which commit the package was made from. Only
names, types, defaults and choices are written.
"""

import argparse
import json
import sys

from errors import UserError
from recipes.schema import DATA, file_name, megatron, mindspeed, sources, verl

PROJECTS = {module.COMPONENT: module for module in (verl, mindspeed, megatron)}


def generate(project: str, source: str, commit: str | None) -> dict[str, dict]:
    """The tables of a project as they are in `source`."""
    module = PROJECTS[project]
    return module.tables(sources.open_tree(source, commit, module.FOLDER))


def text(project: str, commit: str, tables: dict[str, dict]) -> str:
    """The data file: one key a line, so that two states can be compared."""
    written = [f' "project": {json.dumps(project)}', f' "commit": {json.dumps(commit)}']
    shown = []
    for table, entries in tables.items():
        lines = [f"   {json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items()]
        shown.append(f"  {json.dumps(table)}: {{\n" + ",\n".join(lines) + "\n  }")
    written.append(' "tables": {\n' + ",\n".join(shown) + "\n }")
    return "{\n" + ",\n".join(written) + "\n}\n"


def main(arguments: list[str] | None = None) -> int:
    """Generates one file; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.schema.generate", description=__doc__.splitlines()[0])
    parser.add_argument("project", choices=PROJECTS)
    parser.add_argument("source", help="a checkout, a git directory, or `installed`")
    parser.add_argument("commit", help="the full commit, which names the file")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there, write nothing")
    given = parser.parse_args(arguments)
    try:
        made = text(given.project, given.commit, generate(given.project, given.source, given.commit))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    file = DATA / file_name(given.project, given.commit)
    if given.check:
        same = file.is_file() and file.read_text(encoding="utf-8") == made
        print(f"{file.name}: {'as generated' if same else 'differs from what the source gives; generate it again'}")
        return 0 if same else 1
    file.write_text(made, encoding="utf-8")
    print(f"{file}: {made.count(chr(10))} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
