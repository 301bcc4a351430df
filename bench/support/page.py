"""A gateway and a team whose model streams a long text in equal pieces, run as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

from agents.items import TResponseStreamEvent
from openai.types.responses import ResponseTextDeltaEvent

from bench.support.report import run
from magent2.bus.memory import MemoryBus
from magent2.gateway.access.auth import Access
from magent2.gateway.server import Gateway, listen
from magent2.roster.agents_file import default_roster
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.model import DemoModel, build_response, stream_events
from magent2.runner.demo.script import ScriptedText
from magent2.runner.team.runner import TeamRunner
from magent2.tools.builtins import BuiltinTools
from magent2.worker.service import WorkerService

CHARS, DELTAS = 8_000, 200
FIRST_DELTA = 2  # its number in the stream: the response and its one item start before it
PAUSE_S = 0.02  # between two pieces, like a fast model

SECTION = """## Part {n}

What a turn does is **recorded** before its tools run, so that nothing is *asked for twice*. See `journal.py`, or the
[guarantees](https://example.org/guarantees), and keep in mind:

- an answer that was recorded is never asked for again,
- a tool that was recorded never runs again, and
- what it sent leaves with its result.

| record | survives |
|---|---|
| answer | yes |
| result | yes |

```python
def settle(run: Run, part: int = {n}) -> None:
    for record in run.records:
        append(record)
```

"""


def text() -> str:
    whole = "".join(SECTION.format(n=n) for n in range(CHARS // len(SECTION) + 1))
    return whole[:CHARS]


class LongModel(DemoModel):
    """Answers every message with the same long text."""

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        answer = text()
        for event in stream_events(build_response(ScriptedText(answer), [{"role": "user", "content": "go"}])):
            if not isinstance(event, ResponseTextDeltaEvent):
                yield event
            elif event.sequence_number == FIRST_DELTA:
                async for piece in _in_pieces(answer, event):
                    yield piece


async def _in_pieces(answer: str, first: ResponseTextDeltaEvent) -> AsyncIterator[ResponseTextDeltaEvent]:
    size = CHARS // DELTAS
    for at in range(0, CHARS, size):
        await asyncio.sleep(PAUSE_S)
        yield first.model_copy(update={"delta": answer[at : at + size]})


async def serve(port: int, token: str) -> None:
    """Run gateway and worker until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    bus = MemoryBus()
    team = TeamRunner(default_roster(), kind="demo", config=RunnerConfig(), model=LongModel(), builtins=BuiltinTools())
    gateway = Gateway(bus, access=Access.by_token(token, loopback=True))
    serving = asyncio.create_task(gateway.serve([listen("127.0.0.1", port)]))
    service = WorkerService(bus, dict.fromkeys(team.agents(), team))
    working = asyncio.create_task(service.run())
    await stopping.wait()
    await service.drain(0.0)
    await working
    gateway.drain()
    await serving
    await team.aclose()
    await bus.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.support.page", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token", required=True)
    options = parser.parse_args()
    run(serve(options.port, options.token))


if __name__ == "__main__":
    main()
