"""The commands of the READMEs' chapter on containers, as a reader would copy them.

A block is a fence right below a comment that names it, `<!-- commands: build -->`; a line of it is a command, what
follows two spaces and # is an explanation, and a backslash at the end of a line joins the next one.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = {"README.md": "## Container", "README.zh.md": "## 容器"}
BLOCK = re.compile(r"^<!-- commands: ([\w-]+) -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A named block of commands, each a line for a POSIX shell."""

    name: str
    commands: tuple[str, ...]


def text(readme: str = "README.md") -> str:
    """The chapter."""
    whole = (ROOT / readme).read_text(encoding="utf-8")
    return re.split(r"^## ", whole.partition(f"\n{HEADINGS[readme]}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(readme: str = "README.md") -> dict[str, Block]:
    """The blocks by name, in the chapter's order."""
    return {name: Block(name, tuple(_commands(body))) for name, body in BLOCK.findall(text(readme))}


def _commands(body: str) -> list[str]:
    lines = body.replace("\\\n", " ").splitlines()
    return [" ".join(line.partition("  #")[0].split()) for line in lines if line.strip()]
