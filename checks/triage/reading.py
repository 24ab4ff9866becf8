"""A log as chunks of whole lines: plain or gzipped, from a file or standard input, of any size and with any content."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from errors import UserError

BLOCK = 1 << 20  # bytes; what is searched at once should stay in the processor's cache
LONGEST = 1 << 20  # longer lines come in parts
HEAD = 1 << 14
GZIP = b"\x1f\x8b"
TEXT_CONTROLS = b"\t\n\r\x0b\x0c\x08\x1b\x07"
CONTROLS = bytes(set(range(32)) - set(TEXT_CONTROLS)) + b"\x7f"
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Chunk:
    """Bytes that begin at the start of a line (or of a part of one); `line` is that line's number, from 1."""

    data: bytes
    line: int


@dataclass
class Log:
    """One log. Reading it once leaves its size and what was odd about it."""

    name: str
    lines: int = 0
    size: int = 0
    notes: list[str] = field(default_factory=list)

    def chunks(self) -> Iterator[Chunk]:
        """The log from its start. UserError where it cannot be read, is empty or is no text."""
        with _opened(self.name) as stream:
            rest = b""
            for block in self._blocks(stream):
                data = rest + block
                end = data.rfind(b"\n") + 1
                if not end and len(data) < LONGEST:
                    rest = data
                    continue
                end = end or len(data)
                yield self._chunk(data[:end])
                rest = data[end:]
            if rest:
                yield self._chunk(rest)
                self.lines += 1
        if not self.size:
            raise UserError(f"{self.name}: expected a log, found nothing in it; name the run's log")

    def _blocks(self, stream: BinaryIO) -> Iterator[bytes]:
        try:
            while block := stream.read(BLOCK):
                if not self.size:
                    _refuse_binary(block[:HEAD], self.name)
                self.size += len(block)
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if not self.size:
                raise UserError(f"{self.name}: expected a gzipped log, found: {error}; compress it again") from None
            self.notes.append(f"the compressed file is cut off or damaged ({error}): its readable part was used")
        except OSError as error:
            raise UserError(f"{self.name}: expected a log that can be read, found: {error.strerror or error}") from None

    def _chunk(self, data: bytes) -> Chunk:
        chunk = Chunk(data, self.lines + 1)
        self.lines += data.count(b"\n")
        return chunk


def _opened(name: str) -> BinaryIO:
    if name == STANDARD_INPUT:
        raw = io.BufferedReader(io.FileIO(sys.stdin.fileno(), closefd=False))
    else:
        path = Path(name)
        if path.is_dir():
            raise UserError(f"{name}: expected a log or a run directory, found a folder without a train.log")
        try:
            raw = path.open("rb")
        except OSError as error:
            raise UserError(f"{name}: expected a log, found: {error.strerror or error}; name the run's log") from None
    try:
        gzipped = raw.peek(2)[:2] == GZIP
    except OSError as error:
        raise UserError(f"{name}: expected a log that can be read, found: {error.strerror or error}") from None
    return gzip.GzipFile(fileobj=raw) if gzipped else raw


def _refuse_binary(head: bytes, name: str) -> None:
    odd = len(head) - len(head.translate(None, CONTROLS))
    if odd > len(head) / 20:
        raise UserError(f"{name}: expected a text log, found a binary file; name the run's log")
