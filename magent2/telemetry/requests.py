"""What can be seen of requests and of the messages they bring."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magent2.telemetry.turns import send_facts

if TYPE_CHECKING:
    from magent2.telemetry.otel import Tracer


class Deliveries:
    """Sees the messages that a gateway delivers: how long the bus took, and, with traces on, a span each."""

    def __init__(self, note: Callable[[float], None], tracer: Tracer | None = None) -> None:
        self._note = note
        self._tracer = tracer

    @contextmanager
    def delivery(self, envelope_id: str, recipient: str, conversation: str) -> Iterator[str | None]:
        """Around a delivery; gives what names it to whoever gets the message, if anything does."""
        begun = time.perf_counter()
        if self._tracer is None:
            yield None
        else:
            span = self._tracer.begin("send", "producer", facts=send_facts(envelope_id, recipient, conversation))
            try:
                yield span.traceparent
            except BaseException as error:
                span.fail(type(error).__name__)
                raise
            finally:
                span.end()
        self._note(time.perf_counter() - begun)
