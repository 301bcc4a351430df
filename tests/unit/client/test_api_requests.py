from __future__ import annotations

import json

import pytest

from magent2.client import api_requests
from magent2.client.api_requests import problem
from magent2.errors import (
    AddressError,
    Conflict,
    GatewayBusy,
    GatewayFailed,
    GatewayProblem,
    Gone,
    InvalidInput,
    NotFound,
    RequestRefused,
    TransientError,
    Unauthorized,
)


@pytest.mark.parametrize(
    ("name", "recipient", "conversation"),
    [("Bob", "agent:Bob", None), ("agent:Bob", "agent:Bob", None), ("chat:c1", "chat:c1", "c1")],
)
def test_a_bare_name_is_an_agents_and_a_conversation_is_its_own(
    name: str, recipient: str, conversation: str | None
) -> None:
    body = api_requests.send(name, "hello").body or {}

    assert body["recipient"] == recipient
    assert body["conversation_id"] == conversation or str(body["conversation_id"]).startswith("c-")


def test_a_message_has_its_id_before_it_is_sent_and_says_only_what_was_chosen() -> None:
    first, second = api_requests.send("Bob", "hello").body or {}, api_requests.send("Bob", "hello").body or {}

    assert first["id"] != second["id"]
    assert set(first) == {"id", "conversation_id", "recipient", "content"}
    assert (api_requests.send("Bob", "hello", sender="user:ann").body or {})["sender"] == "user:ann"


def test_a_recipient_that_cannot_be_is_refused_here() -> None:
    with pytest.raises(AddressError):
        api_requests.send("agent:", "hello")


@pytest.mark.parametrize(
    "limits", [{}, {"cost_usd": float("nan")}, {"cost_usd": float("inf")}, {"calls": -float("inf")}]
)
def test_a_limit_without_a_unit_or_without_a_number_is_refused_here(limits: dict[str, float | None]) -> None:
    with pytest.raises(InvalidInput, match=r"tokens, calls, cost_usd|must be a number"):
        api_requests.set_budget("day", "", limits)


def test_a_limit_can_be_removed_and_restored() -> None:
    removed, restored = api_requests.set_budget("day", "", {"calls": None}), api_requests.reset_budget("day", "")

    assert removed.body == {"budget": "day", "name": "", "calls": None}
    assert restored.body == {"budget": "day", "name": "", "reset": True}


def test_names_are_quoted_in_paths() -> None:
    assert api_requests.conversation("a/b c?ü").path == "/api/sdk/session/a%2Fb%20c%3F%C3%BC"
    assert api_requests.retry_dead("a/b", 7).path == "/api/dead/a%2Fb/7/retry"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefused),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (413, RequestRefused),
        (421, Unauthorized),
        (422, RequestRefused),
        (429, GatewayBusy),
        (500, GatewayFailed),
        (503, GatewayBusy),
        (507, GatewayFailed),
    ],
)
def test_a_problem_is_an_error_by_what_the_caller_can_do(status: int, kind: type[GatewayProblem]) -> None:
    document = {"type": "about:blank", "title": "t", "status": status, "detail": "why", "code": "some_code", "floor": 3}

    error = problem(status, {}, json.dumps(document).encode())

    assert type(error) is kind
    assert (error.status, error.code, str(error), error.fields["floor"]) == (status, "some_code", "why", 3)
    assert isinstance(error, InvalidInput) == (kind is RequestRefused)
    assert isinstance(error, TransientError) == (kind is GatewayBusy)


def test_a_busy_gateway_says_when_to_come_back() -> None:
    error = problem(503, {"retry-after": "2"}, b"{}")

    assert isinstance(error, GatewayBusy)
    assert error.retry_after_s == 2


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"", b'"text"'])
def test_an_error_without_a_document_is_told_by_its_number(content: bytes) -> None:
    assert "the gateway answered 502" in str(problem(502, {}, content))


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b"7"])
def test_an_answer_that_no_gateway_gives_is_told_as_such(content: bytes) -> None:
    with pytest.raises(GatewayFailed, match="not a magent2 gateway"):
        api_requests.conversations(1, None, None).read(200, {}, content)


def test_fields_of_a_later_release_are_passed_over() -> None:
    known = {"conversation_id": "c1", "last_seq": 3, "active_agent": None, "title": None, "run_status": None}
    later = {**known, "usage": None, "last_active_at": "2026-01-02T03:04:05Z", "mood": "good"}
    found = api_requests.conversation("c1").read(200, {}, json.dumps(later).encode())

    assert (found.conversation_id, found.last_seq, found.title) == ("c1", 3, None)
