from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.directory.users import (
    COOL_DOWN_S,
    Friendship,
    accept_friendship,
    decide_accept,
    decide_refuse,
    decide_remove,
    decide_request,
    find_friendship,
    friendship_id,
    list_friendships,
    refuse_friendship,
    remove_friendship,
    request_friendship,
)
from magent2.errors import InvalidInput, NotFriends
from tests.support.engines import DISTINCT_ENGINES, new_engines

PENDING = Friendship("ann|bob", "pending", "ann")
FRIENDS = Friendship("ann|bob", "friends", "ann")
APART = Friendship("ann|bob", "apart", "ann", waits="ann", cool_ms=1000)
WEEK_MS = int(COOL_DOWN_S * 1000)


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("now", "by", "at_ms", "event"),
    [
        (None, "ann", 0, "requested"),
        (PENDING, "ann", 0, None),
        (PENDING, "bob", 0, "accepted"),
        (FRIENDS, "ann", 0, InvalidInput),
        (APART, "ann", 999, InvalidInput),
        (APART, "ann", 1000, "requested"),
        (APART, "bob", 0, "requested"),
    ],
)
def test_asking(now: Friendship | None, by: str, at_ms: int, event: str | type[Exception] | None) -> None:
    if isinstance(event, type):
        with pytest.raises(event):
            decide_request(now, by, at_ms)
    else:
        decision = decide_request(now, by, at_ms)
        assert (decision or {}).get("event") == event


@pytest.mark.parametrize("now", [None, APART, FRIENDS, PENDING])
def test_only_the_user_who_was_asked_can_refuse(now: Friendship | None) -> None:
    with pytest.raises(InvalidInput, match="no request"):
        decide_refuse(now, "ann")


def test_accepting_twice_changes_nothing_and_a_requester_cannot_accept() -> None:
    assert decide_accept(FRIENDS, "bob") is None
    for now in (None, PENDING, APART):
        with pytest.raises(InvalidInput):
            decide_accept(now, "ann")


@pytest.mark.parametrize(
    ("now", "by", "event", "waits"),
    [
        (FRIENDS, "ann", "removed", "bob"),
        (FRIENDS, "bob", "removed", "ann"),
        (PENDING, "ann", "removed", "ann"),
        (PENDING, "bob", "refused", "ann"),
    ],
)
def test_who_has_to_wait_after_an_end(now: Friendship, by: str, event: str, waits: str) -> None:
    decision = decide_remove(now, by)

    assert decision is not None
    assert (decision["event"], decision["waits"]) == (event, waits)


def test_a_user_cannot_be_their_own_friend() -> None:
    with pytest.raises(InvalidInput, match="two users"):
        friendship_id("ann", "user:ann")


def test_both_must_agree(bus: Engine) -> None:
    run_sync(bus, request_friendship, "ann", "bob")
    with pytest.raises(NotFriends):
        run_sync(bus, find_friendship, "bob", "ann")

    run_sync(bus, accept_friendship, "bob", "ann")

    assert run_sync(bus, find_friendship, "bob", "ann").state.status == "friends"
    assert [friendship.id for friendship in run_sync(bus, list_friendships, "bob")] == ["ann|bob"]
    assert run_sync(bus, list_friendships, "cat") == []


def test_a_user_who_was_refused_waits_a_week(bus: Engine) -> None:
    run_sync(bus, request_friendship, "ann", "bob")
    apart = run_sync(bus, refuse_friendship, "bob", "ann")

    with pytest.raises(InvalidInput, match="again in 7 days"):
        run_sync(bus, request_friendship, "ann", "bob")
    with pytest.raises(InvalidInput, match="again in 1 h"):
        run_sync(bus, request_friendship, "ann", "bob", apart.cool_ms - 1000)
    assert run_sync(bus, request_friendship, "ann", "bob", apart.cool_ms).status == "pending"


def test_a_user_who_refused_may_ask_at_once(bus: Engine) -> None:
    run_sync(bus, request_friendship, "ann", "bob")
    run_sync(bus, refuse_friendship, "bob", "ann")

    assert run_sync(bus, request_friendship, "bob", "ann").asked_by == "bob"


def test_what_never_was_cannot_be_ended(bus: Engine) -> None:
    with pytest.raises(NotFriends):
        run_sync(bus, remove_friendship, "ann", "bob")
    assert run_sync(bus, list_friendships) == []
