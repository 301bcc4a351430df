"""What the engines on a server share: the default prefix of a log, and for how long they retry by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator

DEFAULT_PREFIX = "magent2"  # of the keys of a log, or the name of its schema
RETRY_FOR_S = 20.0  # after a working connection was lost
FIRST_CONTACT_S = 2.0  # before the first connection
DELAY_MIN_S, DELAY_MAX_S = 0.02, 1.0


def retry_delays(for_s: float) -> Iterator[float]:
    """Yield the delay before each attempt, with exponential backoff, until `for_s` seconds have passed."""
    deadline = time.monotonic() + for_s
    yield 0.0
    delay = DELAY_MIN_S
    while (left := deadline - time.monotonic()) > 0:
        yield min(delay, left)
        delay = min(delay * 2, DELAY_MAX_S)
