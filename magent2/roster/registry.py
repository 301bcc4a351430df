"""The roster as it is now. A file that has changed is read again; one that cannot be used changes nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from magent2.errors import RosterError
from magent2.roster.config import Loaded, load
from magent2.roster.environment import Override
from magent2.roster.spec import Roster

logger = logging.getLogger(__name__)

FRESH_S = 2.0  # a file this new may change once more without a sign in its times

Sign = tuple[tuple[int, int, int], ...]


class Registry:
    """Holds the current roster. A run keeps the roster that it took; the next one sees what was reloaded.

    `error` is why the last reload changed nothing, None when the current roster is what the file says.
    """

    def __init__(self, read: Callable[[], Loaded]) -> None:
        """`read` is called now and after each change; its first error is the caller's."""
        self.error: RosterError | None = None
        self._read = read
        loaded = read()
        self._roster = loaded.roster
        self._files: tuple[Path, ...] = loaded.files
        self._seen = _sign(loaded.files)

    @classmethod
    def of(cls, roster: Roster) -> Registry:
        """A roster that no file stands behind."""
        return cls(lambda: Loaded(roster))

    @classmethod
    def of_file(
        cls,
        path: Path,
        known_tools: Collection[str],
        environ: Mapping[str, str] | None = None,
        override: Override | None = None,
    ) -> Registry:
        """The roster of a file, with what the environment says over it."""

        def read() -> Loaded:
            loaded = load(path, known_tools, environ)
            return loaded if override is None else Loaded(override.apply(loaded.roster), loaded.files)

        return cls(read)

    @property
    def roster(self) -> Roster:
        return self._roster

    @property
    def files(self) -> tuple[Path, ...]:
        """What it is read from; nothing, where no file stands behind it."""
        return self._files

    def reload(self, *, again: bool = False) -> bool:
        """Whether there is another roster now. Costs one look at each file while nothing changes.

        `again`: read them whatever they look like.
        """
        if not again and self._seen is not None and self._seen == _sign(self._files):
            return False
        try:
            loaded = self._read()
        except RosterError as error:
            self._keep(error)
            return False
        return self._take(loaded)

    def _take(self, loaded: Loaded) -> bool:
        changed = loaded.roster != self._roster
        self._roster, self._files, self.error = loaded.roster, loaded.files, None
        self._seen = _sign(loaded.files)
        if changed:
            logger.info("roster reloaded", extra={"agents": list(loaded.roster.agents())})
        return changed

    def _keep(self, error: RosterError) -> None:
        if self.error is None or self.error.faults != error.faults:
            logger.error(
                "roster not reloaded; the one before stays in use",
                extra={"error": type(error).__name__, "file": error.where, "faults": list(error.faults)},
            )
        self.error = error
        self._seen = None  # what mends it may be a file that is not known yet


def read_again(registry: Registry) -> str:
    """Read the files now, whatever they look like; what came of it, in words for a person."""
    if not registry.files:
        return "there is no file of agents to read again"
    registry.reload(again=True)
    if registry.error is not None:
        return f"{registry.error}; the team stays as it was"
    return f"the team was read again: {', '.join(registry.roster.agents())}"


def _sign(files: Sequence[Path]) -> Sign | None:
    """What changes when a file does. None, to be read again, when one is not there or too new to be sure of."""
    now_ns = time.time_ns()
    found: list[tuple[int, int, int]] = []
    for path in files:
        try:
            seen = path.stat()
        except OSError:
            return None
        if abs(now_ns - seen.st_mtime_ns) < FRESH_S * 1e9:
            return None
        found.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)
