"""Workers killed with SIGKILL before and after every append of a run with parallel tools and a handoff.

The agents have two models, the first of which is down: every answer is that of the second, and names it.
The next worker repeats no recorded model request and no recorded tool call, and reaches the same result.
Asking is counted at a real HTTP server, running in a file that the tools write to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Leave
from magent2.sessions.history import run_id_of
from tests.support.audit import whole_log
from tests.support.journaled_runs import answers_recorded, results_in, results_recorded, sorted_history
from tests.support.model_server import Call, Json, ModelServer, Reply
from tests.support.processes import Child, ProcessGroup
from tests.support.worker_fixture import AGENT, outputs, send, stream

CHILD = "tests.integration.children.journal"
POINTS_MIN = 14
APPENDS_MAX = 40  # a run that makes more than that is stuck
SIGKILL = 9

CALLS = {"c1": 1, "c2": 2, "c4": 4}  # calls of `work`, by the number that they are asked to do
LAST_OF_TURN = ("c2", "h1", "c4")


def turn_of(request: Json) -> int:
    shown = results_in(request["input"])
    return sum(call in shown for call in LAST_OF_TURN)


def answer(request: Json) -> Reply:
    """Two tools at once, a handoff, a tool and a letter, and the end."""
    letter = {"recipient": "agent:Cy", "content": "news"}
    return (
        Reply("Let me see. ", calls=[Call("work", {"n": 1}, "c1"), Call("work", {"n": 2}, "c2")]),
        Reply(calls=[Call("transfer_to_bea", {}, "h1")]),
        Reply("Now I. ", calls=[Call("chat_send", letter, "c3"), Call("work", {"n": 4}, "c4")]),
        Reply("All is done."),
    )[turn_of(request)]


TURNS = 4


class JournalScenario:
    """A log, a model, and workers that are killed one after the other."""

    def __init__(self, engine: Engine, server: ModelServer, workers: Child, effects: Path) -> None:
        self.engine = engine
        self.server = server
        self._workers = workers
        self._effects = effects

    def send(self, conversation: str) -> None:
        send(self.engine, "go", conversation, id=f"mail-{conversation}", created_at="2026-01-01T00:00:00Z")

    def work(self, worker: str, at: int = 0, after: bool = False) -> bool:
        """Have a worker serve the one message that waits; whether it lived. Its lanes are free afterwards."""
        self._workers.write_line(json.dumps({"worker": worker, "at": at, "after": after}))
        end = self._workers.next_report()
        assert end["code"] in (0, -SIGKILL), self._workers.errors()
        self.server.hear_clients_out()
        self.engine.call(Leave(worker))
        return bool(end["code"] == 0)

    def asked(self) -> list[int]:
        return [turn_of(request) for request in self.server.requests]

    def done(self, conversation: str) -> list[int]:
        lines = self._effects.read_text().splitlines() if self._effects.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == conversation]

    def letters(self, conversation: str) -> list[str]:
        mail = [record.payload for record in whole_log(self.engine, "chat:Cy")]
        return [payload["content"] for payload in mail if payload["conversation_id"] == conversation]

    def told(self, conversation: str) -> list[tuple[Any, ...]]:
        """Results and texts on the stream, each of which is there once."""
        kept = [event for event in stream(self.engine, conversation) if event["event"] in ("message", "output")]
        steps = [event for event in stream(self.engine, conversation) if event.get("status") == "success"]
        return sorted([(event["event"], event["text"]) for event in kept]) + sorted(
            (event["tool_call_id"], "") for event in steps
        )

    def history(self, conversation: str) -> list[Any]:
        """The history without what differs between conversations: their names, and the size of requests with them."""
        text = json.dumps(sorted_history(self.engine, conversation))
        named = text.replace(run_id_of(AGENT, conversation, f"mail-{conversation}"), "RUN").replace(conversation, "ONE")
        plain: list[Any] = json.loads(re.sub(r"send-[0-9a-f]{32}", "SEND", named))
        for record in plain:
            record.pop("seen", None)
            record.pop("mail", None)
            record.pop("estimate", None)
        return plain


@pytest.fixture
def scenario(log_url: str, engine: Engine, process_group: ProcessGroup, tmp_path: Path) -> Iterator[JournalScenario]:
    effects = tmp_path / "effects"
    with ModelServer(answer) as server, ModelServer(lambda request: Reply(status=503)) as down:
        urls = {"url": log_url, "model_url": server.url, "down_url": down.url}
        workers = process_group.spawn(CHILD, **urls, effects=str(effects))
        workers.next_report()
        server.requests.clear()
        yield JournalScenario(engine, server, workers, effects)


def test_a_takeover_repeats_nothing_that_is_recorded(scenario: JournalScenario) -> None:
    scenario.send("whole")
    assert scenario.work("w-whole")
    whole = scenario.history("whole")
    assert scenario.asked() == list(range(TURNS))
    assert {record["response"]["model"] for record in whole if record["kind"] == "answer"} == {"scripted"}
    points = 0

    for at in range(1, APPENDS_MAX):
        lived = [_kill_and_take_over(scenario, at, after, whole) for after in (False, True)]
        points += lived.count(False)
        if all(lived):
            break

    assert points >= POINTS_MIN
    print(f"{points} points")


def _kill_and_take_over(scenario: JournalScenario, at: int, after: bool, whole: list[Any]) -> bool:
    """Whether the worker came to its end before the append at which it was to die."""
    name = f"{'after' if after else 'before'}{at}x"
    scenario.send(name)
    lived = scenario.work(f"mortal-{name}", at, after)
    answered, recorded = answers_recorded(scenario.engine, name), results_recorded(scenario.engine, name)
    settled = bool(outputs(scenario.engine, name))
    asked, done = len(scenario.server.requests), len(scenario.done(name))
    assert 0 in answered or not done, "a tool ran before its answer was on the log"

    if not settled:
        assert scenario.work(f"heir-{name}")

    assert sorted(scenario.asked()[asked:]) == [turn for turn in range(TURNS) if turn not in answered], name
    again = [] if settled else [n for call, n in CALLS.items() if call not in recorded]
    assert sorted(scenario.done(name)[done:]) == again, name
    assert scenario.history(name) == whole, name
    assert scenario.told(name) == scenario.told("whole"), name
    assert scenario.letters(name) == ["news"], name
    return lived
