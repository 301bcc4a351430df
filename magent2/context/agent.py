"""An agent's place on the message bus of a run."""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from magent2.context.bus import MAXLEN, MessageBus
from magent2.context.message import BusMessage
from magent2.errors import InvalidInput
from magent2.models.address import check_name

MAIN = "main"
SUFFIX_BYTES = 2  # `debugger-a7b9`


@dataclass(slots=True)
class _Family:
    """What the agents of one run share."""

    bus: MessageBus
    conversation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    ids: set[str] = field(default_factory=lambda: {MAIN})  # ever given
    main_left: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new_id(self, name: str) -> str:
        """One that no agent of this run has or had: its mail is for nobody else."""
        with self.lock:
            length = SUFFIX_BYTES
            while (found := f"{name}-{secrets.token_hex(length)}") in self.ids:
                length += 1
            self.ids.add(found)
            return found


class AgentContext:
    """One agent of a run: who it is, where it works (`env`, handed through as it is), and its mail.

    The first context of a run is `main`; it makes those of its subagents, and they share its bus. An agent has mail
    from when its context is entered until it is left. Once main has left, the bus keeps only what a subagent that is
    still there can read.
    """

    def __init__(self, env: Any = None, *, maxlen: int = MAXLEN) -> None:
        self._place(env, MAIN, MAIN, _Family(MessageBus(maxlen)))

    def _place(self, env: Any, agent_id: str, name: str, family: _Family) -> None:
        self.env = env
        self.agent_id = agent_id
        self.name = name
        self._family = family
        self._entered = False
        self._returned: list[BusMessage] = []
        self._told_lag = 0
        self._lock = threading.Lock()

    @property
    def message_bus(self) -> MessageBus:
        return self._family.bus

    @property
    def conversation_id(self) -> str:
        """The same for all agents of the run."""
        return self._family.conversation_id

    def create_subagent_context(self, name: str) -> AgentContext:
        """The context of a new subagent, with an id of its own: `name-xxxx`. It has mail once it is entered."""
        check_name(name, "subagent")
        context = object.__new__(AgentContext)
        context._place(self.env, self._family.new_id(name), name, self._family)
        return context

    def subscribe(self) -> None:
        """Have mail from now on; entering the context does it, unless it was done before."""
        self.message_bus.subscribe(self.agent_id)

    def send_message(self, message: BusMessage) -> BusMessage:
        """Put a message on the bus; the one that is there already if its id is known."""
        return self.message_bus.send(message)

    def consume_messages(self) -> list[BusMessage]:
        """The agent's unread messages, each of them once: first those that were given back."""
        with self._lock:
            returned, self._returned = self._returned, []
            return returned + self.message_bus.consume(self.agent_id)

    def return_messages(self, messages: Iterable[BusMessage]) -> None:
        """Give back what was taken and came to nothing: it is consumed again, before all else."""
        with self._lock:
            self._returned = [*messages, *self._returned]

    def lost_messages(self) -> int:
        """How many messages were trimmed before the agent read them, since it last asked."""
        with self._lock:
            told, self._told_lag = self._told_lag, self.message_bus.lag(self.agent_id)
            return self._told_lag - told

    async def __aenter__(self) -> AgentContext:
        if self._entered:
            raise InvalidInput(f"the context of {self.agent_id!r} is entered already; make another for another agent")
        self._entered = True
        self._family.main_left = self._family.main_left and self.agent_id != MAIN
        self.subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self._returned, self._told_lag = [], 0
        self.message_bus.unsubscribe(self.agent_id)
        self._family.main_left = self._family.main_left or self.agent_id == MAIN
        if self._family.main_left:
            self.message_bus.sweep()
