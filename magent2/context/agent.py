"""The context of one agent in a run: its identity, its environment and its messages."""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from magent2.context.bus import MAXLEN, BusMessage, MessageBus
from magent2.errors import InvalidInput
from magent2.models.address import check_name

MAIN = "main"
SUFFIX_BYTES = 2  # `debugger-a7b9`


@dataclass(slots=True)
class _SharedState:
    """State that all agents of one run share."""

    bus: MessageBus
    conversation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    used_ids: set[str] = field(default_factory=lambda: {MAIN})  # ids of finished agents included
    entered_ids: set[str] = field(default_factory=set)  # ids of agents whose context is entered
    main_left: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new_id(self, name: str) -> str:
        """Return an id that no agent of this run has or had, so that no agent receives another one's messages."""
        with self.lock:
            length = SUFFIX_BYTES
            while (found := f"{name}-{secrets.token_hex(length)}") in self.used_ids:
                length += 1
            self.used_ids.add(found)
            return found


class AgentContext:
    """One agent of a run: its id, its environment `env` (passed through unchanged) and its messages.

    The first context of a run is `main`. It creates the contexts of its subagents, which share its bus. An agent
    receives messages from entering its context until leaving it. When main leaves, the bus is cleared: it keeps only
    subagents whose context is still entered, and the messages that they can still read.
    """

    def __init__(self, env: Any = None, *, maxlen: int = MAXLEN) -> None:
        self._set_up(env, MAIN, MAIN, _SharedState(MessageBus(maxlen)))

    def _set_up(self, env: Any, agent_id: str, name: str, shared: _SharedState) -> None:
        self.env = env
        self.agent_id = agent_id
        self.name = name
        self._shared = shared
        self._entered = False
        self._returned: list[BusMessage] = []
        self._reported_lag = 0
        self._lock = threading.Lock()

    @property
    def message_bus(self) -> MessageBus:
        return self._shared.bus

    @property
    def conversation_id(self) -> str:
        """The conversation of the run, the same for all its agents."""
        return self._shared.conversation_id

    def create_subagent_context(self, name: str) -> AgentContext:
        """Create the context of a subagent with a new id, `name-xxxx`. It receives messages once it is entered."""
        check_name(name, "subagent")
        context = object.__new__(AgentContext)
        context._set_up(self.env, self._shared.new_id(name), name, self._shared)
        return context

    def subscribe(self) -> None:
        """Receive messages from now on. Entering the context subscribes too; a second call changes nothing."""
        self.message_bus.subscribe(self.agent_id)

    def send_message(self, message: BusMessage) -> BusMessage:
        """Send a message and return it; return the stored message if one with the same id is on the bus."""
        return self.message_bus.send(message)

    def consume_messages(self) -> list[BusMessage]:
        """Return the unread messages, each once. Messages that were returned to the bus come first."""
        with self._lock:
            returned, self._returned = self._returned, []
            return returned + self.message_bus.consume(self.agent_id)

    def return_messages(self, messages: Iterable[BusMessage]) -> None:
        """Return consumed messages that no model call has used; the next `consume_messages` yields them first."""
        with self._lock:
            self._returned = [*messages, *self._returned]

    def lost_messages(self) -> int:
        """Return how many messages were trimmed before the agent read them, since the last call."""
        with self._lock:
            reported, self._reported_lag = self._reported_lag, self.message_bus.lag(self.agent_id)
            return self._reported_lag - reported

    async def __aenter__(self) -> AgentContext:
        if self._entered:
            raise InvalidInput(
                f"the context of {self.agent_id!r} is already entered; create another context for another agent"
            )
        self._entered = True
        shared = self._shared
        with shared.lock:
            shared.entered_ids.add(self.agent_id)
            shared.main_left = shared.main_left and self.agent_id != MAIN
        self.subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self._returned, self._reported_lag = [], 0
        self.message_bus.unsubscribe(self.agent_id)
        shared = self._shared
        with shared.lock:
            shared.entered_ids.discard(self.agent_id)
            shared.main_left = shared.main_left or self.agent_id == MAIN
            if shared.main_left:
                self.message_bus.sweep(keep=shared.entered_ids)
