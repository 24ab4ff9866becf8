"""Where any of many texts stands in a large block of bytes, in one pass however many there are.

Every text is stood for by four of its bytes. The block is taken as 32-bit numbers from each of its first four bytes on;
a table says of each number's hash whether it belongs to a text. What passes is compared with the text itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

GRAM = 4
BITS = 18
FACTOR = np.uint32(2654435761)  # Knuth's multiplicative hash
SHIFT = np.uint32(32 - BITS)
# Letters by how often logs have them: four rare ones are found less often by chance.
COMMON = "etaoinsrldcupmgfh _.:,-=0123456789/()"


class Sieve:
    """Finds texts, each with something that the caller wants to know it by."""

    def __init__(self, texts: Iterable[tuple[str, object]]):
        self._candidates: dict[bytes, list[tuple[bytes, int, object]]] = defaultdict(list)
        self._table = np.zeros(1 << BITS, dtype=bool)
        for text, known in texts:
            data = text.encode()
            offset = _rarest(data)
            gram = data[offset : offset + GRAM]
            self._candidates[gram].append((data, offset, known))
            self._table[(np.frombuffer(gram, np.uint32) * FACTOR) >> SHIFT] = True

    def found(self, data: bytes) -> Iterator[tuple[int, object]]:
        """Place in the block, and what is known of the text that stands there, in the order of the gram's place."""
        for place in self._places(data):
            for text, offset, known in self._candidates.get(data[place : place + GRAM], ()):
                if data.startswith(text, place - offset) and place >= offset:
                    yield place - offset, known

    def _places(self, data: bytes) -> list[int]:
        """Where one of the grams may stand."""
        places = []
        for start in range(min(GRAM, len(data))):
            numbers = np.frombuffer(data, np.uint32, count=(len(data) - start) // GRAM, offset=start)
            hits = np.flatnonzero(self._table[(numbers * FACTOR) >> SHIFT])
            places.append(hits * GRAM + start)
        return np.sort(np.concatenate(places)).tolist() if places else []


def _rarest(text: bytes) -> int:
    """Where the four bytes of a text begin that other lines have least."""
    weights = [COMMON.find(chr(byte)) for byte in text]
    cost = [100 if weight < 0 else weight for weight in weights]
    return max(range(len(text) - GRAM + 1), key=lambda start: sum(cost[start : start + GRAM]))
