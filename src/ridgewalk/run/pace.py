"""How long a chunk is: short enough that the host looks in twice a second, long enough that looking costs nothing."""

import time

SECONDS = 0.5
"""What a chunk should take."""

LONGEST_CHUNK = 10_000
"""Steps between two looks of the host, at most."""


class Pace:
    """Finds the number of steps that take about half a second; draws do not depend on how a run is cut up."""

    def __init__(self) -> None:
        self._length, self._chunks, self._since = 1, 0, time.perf_counter()

    @property
    def length(self) -> int:
        """Steps of the next chunk."""
        return self._length

    def made(self, steps: int) -> None:
        """A chunk of so many steps is done."""
        now = time.perf_counter()
        took, self._since = now - self._since, now
        self._chunks += 1
        if self._chunks == 1:
            self._length = 2  # the first chunk's time was compilation
            return
        wanted = int(steps * SECONDS / max(took, 1e-9))
        self._length = max(1, min(wanted, 8 * steps, LONGEST_CHUNK))
