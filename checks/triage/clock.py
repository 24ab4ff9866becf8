"""Gaps between the times of a log's lines, found in whole blocks of bytes at once."""

import numpy as np

DAY = 24 * 3600
COLON, ZERO = ord(":"), ord("0")
DIGITS = (0, 1, 3, 4, 6, 7)  # of HH:MM:SS
WEIGHTS = (36000, 3600, 600, 60, 10, 1)
BEFORE = (ord(" "), ord("T"), ord("-"))  # between date and time


def times(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Places of the times that follow a date, and each as seconds of its day."""
    block = np.frombuffer(data, np.uint8)
    if len(block) < 10:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.flatnonzero((block[4:-3] == COLON) & (block[7:] == COLON)) + 2
    separator, day = block[places - 1], block[places - 2]
    places = places[np.isin(separator, BEFORE) & (day >= ZERO) & (day <= ZERO + 9)]
    places = places[places + 8 <= len(block)]
    digits = np.stack([block[places + offset] for offset in DIGITS]).astype(np.int64) - ZERO
    sound = ((digits >= 0) & (digits <= 9)).all(axis=0)
    return places[sound], np.asarray(WEIGHTS) @ digits[:, sound]


class Gaps:
    """Follows the times of a log and names the steps that are longer than a limit, in seconds. A step back is none."""

    def __init__(self, limit: int):
        self._limit = limit
        self._last: int | None = None
        self.last_place = -1  # of the last time in the last block, -1 where it has none

    def found(self, data: bytes) -> list[tuple[int, int, int]]:
        """Places of the times before (0: in an earlier block) and after each gap, and its seconds."""
        places, seconds = times(data)
        self.last_place = int(places[-1]) if len(places) else -1
        if not len(places):
            return []
        before = np.concatenate([[seconds[0] if self._last is None else self._last], seconds[:-1]])
        self._last = int(seconds[-1])
        steps = (seconds - before) % DAY
        long = np.flatnonzero((steps >= self._limit) & (steps < DAY // 2))
        return [(int(places[at - 1]) if at else 0, int(places[at]), int(steps[at])) for at in long]
