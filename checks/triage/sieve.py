"""Where any of many texts stands in a large block of bytes, in one pass however many there are.

Every text is stood for by four of its bytes, those that a sample of the log has least. The block is taken as 32-bit
numbers from each of its first four bytes on; a table says of each number's hash whether it belongs to a text. What
passes is compared with the text itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

GRAM = 4
BITS = 18
FACTOR = np.uint32(2654435761)  # Knuth's multiplicative hash
SHIFT = np.uint32(32 - BITS)
SAMPLE = 1 << 18  # bytes


class Sieve:
    """Finds texts, of four bytes at least, each with something that the caller wants to know it by."""

    def __init__(self, texts: Iterable[tuple[str, object]], sample: bytes = b""):
        self._candidates: dict[bytes, list[tuple[bytes, int, object]]] = defaultdict(list)
        self._table = np.zeros(1 << BITS, dtype=bool)
        often = _counted(sample[:SAMPLE])
        for text, known in texts:
            data = text.encode()
            grams = [data[start : start + GRAM] for start in range(len(data) - GRAM + 1)]
            offset = min(range(len(grams)), key=lambda start: often.get(grams[start], 0))
            self._candidates[grams[offset]].append((data, offset, known))
            self._table[(np.frombuffer(grams[offset], np.uint32) * FACTOR) >> SHIFT] = True

    def found(self, data: bytes) -> Iterator[tuple[int, object]]:
        """Place in the block, and what is known of the text that stands there, in the order of the lines."""
        for place in self._places(data):
            for text, offset, known in self._candidates.get(data[place : place + GRAM], ()):
                if data.startswith(text, place - offset):
                    yield place - offset, known

    def _places(self, data: bytes) -> list[int]:
        """Where one of the grams may stand."""
        places = []
        for start, numbers in _numbers(data):
            hits = np.flatnonzero(self._table[(numbers * FACTOR) >> SHIFT])
            places.append(hits * GRAM + start)
        return np.sort(np.concatenate(places)).tolist() if places else []


def _numbers(data: bytes) -> Iterator[tuple[int, np.ndarray]]:
    """The block as 32-bit numbers, from each of its first four bytes on."""
    for start in range(min(GRAM, len(data))):
        yield start, np.frombuffer(data, np.uint32, count=(len(data) - start) // GRAM, offset=start)


def _counted(sample: bytes) -> dict[bytes, int]:
    """How often each four bytes stand in the sample."""
    columns = [numbers for _, numbers in _numbers(sample)]
    if not columns:
        return {}
    grams, counts = np.unique(np.concatenate(columns), return_counts=True)
    return {gram.tobytes(): int(count) for gram, count in zip(grams, counts, strict=True)}
