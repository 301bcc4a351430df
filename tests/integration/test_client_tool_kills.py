"""Workers killed with SIGKILL before and after appends of a run that waits for the tools of its client.

The client is OpenAI's, at a gateway process. It sends the outputs when the run waits, and sends them again. The run
gets them once and ends once, and no recorded model request is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import openai
import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Leave
from tests.support.audit import whole_log
from tests.support.http_client.service import GATEWAY, TOKEN, answers_at, quiet_port
from tests.support.journaled_runs import answers_recorded, results_in, sorted_history
from tests.support.model_server import Call, Json, ModelServer, Reply
from tests.support.processes import Child, ProcessGroup
from tests.support.waiting import eventually
from tests.support.worker_fixture import AGENT, history, outputs

WORKERS = "tests.integration.children.journal"
SIGKILL = 9
APPENDS_MAX = 20  # a run that makes more than that is stuck
POINTS_MIN = 12

Kinds: TypeAlias = tuple[str | None, str | None]

PICK: Any = {"type": "function", "name": "pick", "parameters": {"type": "object", "properties": {}}, "strict": None}
OUTPUTS = {"call-a": "one", "call-b": "two"}
ITEMS: Any = [{"type": "function_call_output", "call_id": call, "output": text} for call, text in OUTPUTS.items()]


def answer(request: Json) -> Reply:
    if OUTPUTS.keys() <= results_in(request["input"]).keys():
        return Reply("Done.")
    return Reply("Two picks.", calls=[Call("pick", {}, call) for call in OUTPUTS])


class ClientToolScenario:
    """A log, a gateway, a model, and workers that are killed one after the other."""

    def __init__(self, engine: Engine, model: ModelServer, workers: Child, client: openai.OpenAI) -> None:
        self.engine = engine
        self.model = model
        self.client = client
        self._workers = workers

    def post(self, session: str) -> str:
        """Post a message with a tool, while a worker starts. Return the id of the response."""

        def posted() -> str | None:
            try:
                return self.client.responses.create(
                    model=AGENT,
                    input="pick",
                    tools=[PICK],
                    conversation=session,
                    background=True,
                    extra_headers={"Idempotency-Key": session},
                ).id
            except openai.NotFoundError:  # the gateway has not seen a worker of the agent yet
                return None

        return str(eventually(posted))

    def start(self, worker: str, at: int = 0, after: bool = False, kind: str | None = None) -> None:
        """Start a worker that is killed before or after its `at`-th append, of those with a record of the kind."""
        self._workers.write_line(json.dumps({"worker": worker, "at": at, "after": after, "kind": kind}))

    def wait(self, worker: str) -> bool:
        """Wait until the run waits or has ended, or its worker was killed; return whether it lived."""
        end = self._workers.next_report()
        assert end["code"] in (0, -SIGKILL), self._workers.errors()
        self.model.hear_clients_out()
        self.engine.call(Leave(worker))
        return bool(end["code"] == 0)

    def pauses(self, session: str) -> int:
        return sum(record["kind"] == "pause" for record in history(self.engine, session))


@pytest.fixture
def scenario(log_url: str, engine: Engine, process_group: ProcessGroup, tmp_path: Path) -> Iterator[ClientToolScenario]:
    port = quiet_port()
    place = ["--bus", log_url, "--host", "127.0.0.1", "--port", str(port), "--token", TOKEN]
    with ModelServer(answer) as model, ModelServer(lambda request: Reply(status=503)) as down:
        urls = {"url": log_url, "model_url": model.url, "down_url": down.url}
        workers = process_group.spawn(WORKERS, **urls, effects=str(tmp_path / "effects"))
        process_group.spawn(GATEWAY, arguments=place)
        workers.next_report()
        model.requests.clear()
        eventually(lambda: answers_at(port))
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=TOKEN, max_retries=0) as client:
            yield ClientToolScenario(engine, model, workers, client)


def test_a_worker_is_killed_while_the_run_waits_and_right_after_the_outputs_came(scenario: ClientToolScenario) -> None:
    assert _park_and_answer(scenario, 1, after=True, kinds=("pause", "decision")) == 0
    assert _park_and_answer(scenario, 1, after=False) == 0


@pytest.mark.soak
def test_workers_are_killed_around_every_append(scenario: ClientToolScenario) -> None:
    points = 0

    for at in range(1, APPENDS_MAX):
        survivors = [_park_and_answer(scenario, at, after) for after in (False, True)]
        points += sum(2 - lived for lived in survivors)
        if survivors == [2, 2]:
            break

    assert points >= POINTS_MIN
    print(f"{points} points")


def _park_and_answer(scenario: ClientToolScenario, at: int, after: bool, kinds: Kinds = (None, None)) -> int:
    """Kill the worker before the run waits, and another one after the outputs came. Return how many lived.

    The number of appends depends on how the tokens are grouped; with `kinds`, only those with such a record count.
    """
    session = f"{'after' if after else 'before'}{at}{kinds[0] or 'x'}"
    asked = len(scenario.model.requests)
    scenario.start(f"parks-{session}", at, after, kinds[0])
    first = scenario.post(session)
    parks = scenario.wait(f"parks-{session}")
    if kinds[0] == "pause":
        assert scenario.pauses(session) == 1
    if not scenario.pauses(session):
        scenario.start(f"parks-too-{session}")
        assert scenario.wait(f"parks-too-{session}")
    assert (scenario.pauses(session), answers_recorded(scenario.engine, session)) == (1, [0])

    made = scenario.client.responses.create(previous_response_id=first, input=ITEMS, background=True)
    scenario.start(f"goes-on-{session}", at, after, kinds[1])
    goes_on = scenario.wait(f"goes-on-{session}")
    again = scenario.client.responses.create(previous_response_id=first, input=ITEMS, background=True)
    if not outputs(scenario.engine, session):
        scenario.start(f"goes-on-too-{session}")
        assert scenario.wait(f"goes-on-too-{session}")

    found = scenario.client.responses.retrieve(made.id)
    assert (found.status, found.output_text, again.id) == ("completed", "Done.", made.id), session
    assert outputs(scenario.engine, session) == ["Done."], session
    _check_history(scenario, session)
    turns = [len(results_in(request["input"])) for request in scenario.model.requests[asked:]]
    assert set(turns) == {0, 2}, session
    assert len(turns) <= 4 - parks - goes_on, session
    return parks + goes_on


def _check_history(scenario: ClientToolScenario, session: str) -> None:
    """One pause, one decision and one result per call, one end. Nothing is left in the lane."""
    marks = sorted_history(scenario.engine, session)
    told = [(mark["call_id"], mark["output"]) for mark in marks if mark["kind"] == "decision"]
    results = [(mark["call_id"], mark["output"]) for mark in marks if mark["kind"] == "tool"]
    assert sorted(told) == sorted(results) == sorted(OUTPUTS.items()), session
    assert [sum(mark["kind"] == kind for mark in marks) for kind in ("start", "pause", "end")] == [1, 1, 1], session
    events = [record.payload for record in whole_log(scenario.engine, f"stream:{session}")]
    calls = [(event["status"], event["tool_call_id"]) for event in events if event["event"] == "client_call"]
    assert sorted(calls) == sorted((status, call) for status in ("requested", "answered") for call in OUTPUTS), session
    assert [event["status"] for event in events if event["event"] == "run"][-1] == "finished", session
