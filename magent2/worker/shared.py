"""What the runs of one worker have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from magent2.sessions.history import HistoryCache
from magent2.tools.interface import WaitHook
from magent2.worker.retry import Quarantine


@dataclass(frozen=True, slots=True)
class Shared:
    """Handed to every run of a worker."""

    histories: HistoryCache
    quarantine: Quarantine = field(default_factory=Quarantine)
    waits: tuple[WaitHook, ...] = ()  # what each gives up while it waits for an answer
