"""Every answer of every route of `/api`, over HTTP, on every engine: status, code, and the exact shape.

The requests are in `tests/support/api/cases.py`; they must cover everything in the OpenAPI document.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from typing import Any, TypeAlias

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe, Trim
from magent2.gateway.app import create_app
from magent2.models.address import conversation_topics
from magent2.models.media import OCTET_STREAM
from tests.support.api.automation_cases import (
    AUTOMATION_ELSEWHERE,
    AUTOMATION_REFUSALS,
    AUTOMATION_SUCCESSES,
    automate,
)
from tests.support.api.cases import ADMIN_CASES, EXECUTE, FILE_CONTENT, FILE_KEY, HOLD, Case, CaseData
from tests.support.api.cases import REFUSALS as OF_TALK
from tests.support.api.cases import SUCCESSES as TALK
from tests.support.api.directory_cases import PEOPLE_ELSEWHERE, PEOPLE_REFUSALS, PEOPLE_SUCCESSES, settle
from tests.support.api.server import ApiServer, api_server, shared_engines
from tests.support.engines import DISTINCT_ENGINES
from tests.support.gateway import Event, parse_frames
from tests.support.waiting import eventually

Draft202012Validator = import_module("jsonschema").Draft202012Validator
STREAM_TYPE = "text/event-stream; charset=utf-8"
PROBLEM = {"type", "title", "status", "detail", "code"}
STILL = ("quiet", "mine", "bobs", "trimmed", "unheard")  # sessions in which nothing goes on by itself
ELSEWHERE = {(EXECUTE, 409), *PEOPLE_ELSEWHERE, *AUTOMATION_ELSEWHERE}  # have tests of their own
SUCCESSES = [*TALK, *PEOPLE_SUCCESSES, *AUTOMATION_SUCCESSES]
REFUSALS = [*OF_TALK, *PEOPLE_REFUSALS, *AUTOMATION_REFUSALS]
# These tell of a run that has ended, which is no refusal.
OF_RUNS = ("run_failed", "run_stopped")


@pytest.fixture(scope="module", params=DISTINCT_ENGINES)
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    with api_server(shared_engines(request.param, request)) as server:
        yield server


@pytest.fixture(scope="module")
def world(server: ApiServer) -> CaseData:
    """Sessions in every state that a request can meet."""
    with server.client() as ann, server.client(server.bob) as bob, server.client(server.admin) as admin:
        for name in (
            "mine",
            "quiet",
            "idle",
            "held",
            "ended",
            "stopped",
            "gone",
            "doomed",
            "trimmed",
            "redone",
            "reworded",
        ):
            _create(ann, name)
        _create(ann, "asking", agent_name="support")
        _create(bob, "bobs")
        settle(server.bus)
        _create(ann, "failed", scenario_id="ruins")
        ann.delete("/api/sdk/session/gone")
        for number in range(5):
            ann.patch("/api/sdk/session/trimmed", json={"title": str(number)})
        server.bus.call(Trim("stream:trimmed", keep=2))
        ann.post("/send", json={"conversation_id": "unheard", "recipient": "chat:unheard", "content": "hm"})
        answered = _say(ann, "mine", "hello", client_message_id="m1")
        _say(ann, "redone", "hello")
        reworded = _say(ann, "reworded", "hello")
        for key in ("m1", "m2"):
            assert _say(ann, "failed", "hello", client_message_id=key)["code"] == "run_failed"
        held = _hold(ann, "held", client_message_id="k")
        _hold(ann, "ended", client_message_id="m1")
        stopped = _hold(ann, "stopped")
        for name in ("ended", "stopped"):
            ann.post(f"/api/sdk/session/{name}/stop")
            eventually(lambda name=name: _state(ann, name) == "idle")  # type: ignore[misc]
        asked = _ask(ann, "asking")
        files = {"file": _upload(ann, FILE_KEY), "doomed_file": _upload(ann), "bobs_file": _upload(bob)}
        automated = automate(server.bus, ann, bob, admin)
    messages = {
        "asked_call": asked,
        "answered_message": answered["reply_to"],
        "held_message": held,
        "stopped_message": stopped,
        "reworded_message": reworded["reply_to"],
    }
    sessions = ("mine", "quiet", "idle", "held", "ended", "stopped", "gone", "doomed", "trimmed", "bobs", "failed",
                "unheard", "fresh", "asking", "redone", "reworded")  # fmt: skip
    return CaseData({**dict(zip(sessions, sessions, strict=True)), **messages, **files, **automated})


def _create(client: httpx2.Client, name: str, **fields: Any) -> None:
    answer = client.post("/api/sdk/session/create", json={"session_id": name, **fields})
    assert answer.status_code == 200, answer.text


def _upload(client: httpx2.Client, headers: dict[str, str] | None = None) -> str:
    answer = client.post("/api/files", params={"name": "a.txt"}, content=FILE_CONTENT, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["file_id"])


def _say(client: httpx2.Client, name: str, text: str, **fields: Any) -> dict[str, Any]:
    said = {"session_id": name, "user_input": text, **fields}
    answer: dict[str, Any] = client.post("/api/sdk/session/message", json=said).json()
    return answer


def _hold(client: httpx2.Client, name: str, **fields: Any) -> str:
    """A message whose run waits; its id."""
    message_id: str = _say(client, name, HOLD, wait=False, **fields)["message_id"]
    eventually(lambda: "tool_call" in client.get(f"/api/sdk/session/{name}/events").text)
    return message_id


def _ask(client: httpx2.Client, name: str) -> str:
    """A call that has waited for a person, and was approved."""
    _say(client, name, "refund order 7", wait=False)
    eventually(lambda: client.get(f"/api/sdk/session/{name}/approvals").json()["approvals"])
    call: str = client.get(f"/api/sdk/session/{name}/approvals").json()["approvals"][0]["call_id"]
    client.post(f"/api/sdk/session/{name}/approvals/{call}", json={"decision": "approve"})
    return call


def _state(client: httpx2.Client, name: str) -> str:
    return str(client.get(f"/api/sdk/session/{name}").json()["state"])


# --- the document


def _document() -> dict[str, Any]:
    bus = MemoryBus()
    document: dict[str, Any] = json.loads(json.dumps(create_app(bus).openapi()))
    bus.close()
    return document


DOCUMENT = _document()
CLOSED = copy.deepcopy(DOCUMENT["components"])  # in which a shape has the fields that it names and no others
for _shape in CLOSED["schemas"].values():
    if "properties" in _shape:
        _shape["additionalProperties"] = False


def fits(value: Any, schema: dict[str, Any]) -> None:
    Draft202012Validator({**schema, "components": CLOSED}).validate(value)


def test_every_answer_that_the_document_promises_has_a_case() -> None:
    promised = {
        ((method.upper(), path), int(status))
        for path, operations in DOCUMENT["paths"].items()
        for method, operation in operations.items()
        for status in operation["responses"]
        if path.startswith("/api") and int(status) not in ADMIN_CASES - {403}
    }
    asked = {(case.route, case.status) for case in (*SUCCESSES, *REFUSALS)} | ELSEWHERE

    # Every route answers 400 to a repeated header, which `test_probes` requests. Others are cases here.
    assert {key for key in promised if key[1] not in (400, 403)} <= asked
    assert asked <= promised


# --- the cases


Clients: TypeAlias = dict[tuple[str, bool], httpx2.Client]


@pytest.fixture(scope="module")
def clients(server: ApiServer) -> Iterator[Clients]:
    """One for each person at each gateway."""
    with ExitStack() as stack:
        yield {
            (who, hasty): stack.enter_context(server.client(getattr(server, who), hasty=hasty))
            for who in ("ann", "admin")
            for hasty in (False, True)
        }


def ask(clients: Clients, world: CaseData, case: Case) -> httpx2.Response:
    return clients[case.who, case.hasty].request(
        case.route[0],
        world.fill(case.at or case.route[1]),
        params=world.fill(case.params),
        json=world.fill(case.body) if case.content is None else None,
        content=case.content,
        headers=case.headers,
    )


@pytest.mark.parametrize("case", SUCCESSES, ids=lambda case: case.label)
def test_a_route_answers_in_its_exact_shape(clients: Clients, world: CaseData, case: Case) -> None:
    answer = ask(clients, world, case)

    assert answer.status_code == case.status, answer.text
    promised = DOCUMENT["paths"][case.route[1]][case.route[0].lower()]["responses"][str(case.status)].get("content", {})
    if case.status == 204:
        assert (answer.content, promised) == (b"", {})
    elif "text/event-stream" in promised:
        assert answer.headers["content-type"] == STREAM_TYPE
        check_stream(_frames(answer.text), case)
    elif OCTET_STREAM in promised:
        assert answer.content == FILE_CONTENT
        assert answer.headers["content-disposition"].startswith("attachment")
    else:
        fits(answer.json(), promised["application/json"]["schema"])


def check_stream(frames: list[Event], case: Case) -> None:
    assert (frames[-1].kind, frames[-1].data["reason"]) == ("end", "max_events")
    assert len(frames) == case.params["max_events"] + 1 + any(frame.kind == "gap" for frame in frames)
    for frame in frames:
        if "seq" in frame.data and frame.data["seq"] is not None:
            fits(frame.data, {"$ref": "#/components/schemas/ApiEvent"})
        elif frame.kind == "sessions":
            fits({**frame.data, "next": None}, {"$ref": "#/components/schemas/SessionList"})


def _frames(text: str) -> list[Event]:
    """Frames of either stream; the numbers of many sessions are looked at elsewhere."""
    return parse_frames("\n".join(line for line in text.split("\n") if not line.startswith("id: ")))


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.label)
def test_a_refusal_is_a_problem_with_its_code_and_changes_nothing(
    server: ApiServer, clients: Clients, world: CaseData, case: Case
) -> None:
    topics = tuple(topic for name in STILL for topic in conversation_topics(name))
    before = server.bus.call(Describe(topics))

    answer = ask(clients, world, case)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (case.status, case.code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["status"]) == (f"/problems/{case.code}", case.status)
    assert set(problem) >= PROBLEM
    assert problem["detail"]
    if case.code not in OF_RUNS:
        assert server.bus.call(Describe(topics)) == before


def test_a_tool_run_by_name_that_is_stopped_says_so(server: ApiServer, world: CaseData) -> None:
    with server.client() as ann, ThreadPoolExecutor(1) as pool:
        _create(ann, "caught")
        running = pool.submit(ann.post, "/api/tools/execute", json={"session_id": "caught", "tool": "hold"})
        with server.client() as other:
            eventually(lambda: "tool_call" in other.get("/api/sdk/session/caught/events").text)
            other.post("/api/sdk/session/caught/stop")
        answer = running.result(30)

    assert (answer.status_code, answer.json()["code"]) == (409, "run_stopped")


def test_ten_parallel_posts_of_one_key_are_one_run(server: ApiServer, world: CaseData) -> None:
    said = {"session_id": "ten", "user_input": "weather in Oslo", "client_message_id": "m1"}

    def post(number: int) -> dict[str, Any]:
        with server.client(hasty=False) as client:
            answer: dict[str, Any] = client.post("/api/sdk/session/message", json=said).json()
            return answer

    with server.client() as ann:
        _create(ann, "ten")
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(post, range(10)))
        shown = ann.get("/api/sdk/session/ten/events").json()["events"]
        usage = ann.get("/api/sdk/session/ten/usage").json()

    assert answers == [answers[0]] * 10
    assert usage["runs"] == 1
    assert [event["type"] for event in shown].count("run") == 2  # started, finished
