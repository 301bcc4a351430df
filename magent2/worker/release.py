"""Which of two releases is newer. Pure."""

from __future__ import annotations

import re
from typing import TypeAlias

NUMBERED = re.compile(r"(\d+(?:\.\d+)*)(.*)")

Rank: TypeAlias = tuple[tuple[int, ...], bool]


def is_newer(found: str, own: str) -> bool:
    """Whether what a release wrote is from the future. One that cannot be read is; one that is not told is not."""
    if not found or found == own:
        return False
    theirs, ours = _rank(found), _rank(own)
    return theirs is None or ours is None or theirs > ours


def _rank(release: str) -> Rank | None:
    """`1.2.0rc1` comes before `1.2.0`, and both before `1.2.1.dev3`."""
    match = NUMBERED.fullmatch(release.strip())
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), not match[2]
