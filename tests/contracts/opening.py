"""How the suite comes to its engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from magent2.bus.interface import Engine
from tests.support.faces import Face

if TYPE_CHECKING:
    from typing import Protocol

    class Suite(Protocol):
        """What the suites ask of the class that they are mixed into."""

        persistent: bool
        shared: bool

        def scribble(self, engine: Engine, topic: str) -> None: ...


Opener: TypeAlias = Callable[[str], Engine]


@contextmanager
def opened(opener: Opener, name: str, like: Face) -> Iterator[Face]:
    """Another engine on the log of this name, driven through the same face."""
    face = type(like)(opener(name))
    try:
        yield face
    finally:
        face.close()
