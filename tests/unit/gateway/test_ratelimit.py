from __future__ import annotations

import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway import ratelimit
from magent2.gateway.limits import DEFAULT_RATES, Limits, Rate, RouteKind
from magent2.gateway.problems import Problem
from magent2.gateway.ratelimit import Misses, RateLimits, kind_of
from tests.support.gateway import calling, message
from tests.support.keys import ACCESS, ADMIN, person

SLOW: dict[RouteKind, Rate] = dict.fromkeys(DEFAULT_RATES, Rate(per_s=0.001, burst=3))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(limits: RateLimits, name: str = "ann", kind: RouteKind = "send", count: int = 100) -> int:
    """How many of so many get through at once."""
    for number in range(count):
        try:
            limits.take(name, kind)
        except Problem:
            return number
    return count


def test_a_burst_passes_and_then_the_rate() -> None:
    clock = Clock()
    limits = RateLimits({"send": Rate(per_s=10, burst=5)}, clock)

    assert taken(limits) == 5
    clock.now += 0.25
    assert taken(limits) == 2
    clock.now += 60
    assert taken(limits) == 5


def test_names_and_kinds_are_counted_apart() -> None:
    limits = RateLimits({"send": Rate(10, 5), "read": Rate(10, 7)}, Clock())

    assert [taken(limits), taken(limits, "bob"), taken(limits, kind="read")] == [5, 5, 7]


def test_a_refusal_says_when_to_come_again_and_costs_nothing() -> None:
    clock = Clock()
    limits = RateLimits({"send": Rate(per_s=0.1, burst=1)}, clock)
    limits.take("ann", "send")

    for _ in range(3):
        with pytest.raises(Problem) as refused:
            limits.take("ann", "send")
        assert refused.value.headers["retry-after"] == "10"
    clock.now += 10.001
    limits.take("ann", "send")


def test_only_so_many_are_remembered_and_those_who_asked_most_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "COUNTED_MAX", 10)
    limits = RateLimits({"send": Rate(per_s=1, burst=5)}, Clock())

    assert taken(limits, "greedy") == 5
    for number in range(50):
        limits.take(f"user:{number}", "send")

    assert len(limits._full_at) <= 10
    assert taken(limits, "greedy") == 0


def test_misses_pass_again_after_a_while() -> None:
    clock = Clock()
    misses = Misses(clock)
    for _ in range(ratelimit.MISSES_BURST):
        misses.check()
        misses.count()

    with pytest.raises(Problem):
        misses.check()
    clock.now += 1
    misses.check()


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/send", "send"),
        ("POST", "/api/sdk/session/message", "send"),
        ("POST", "/api/tools/execute", "send"),
        ("GET", "/stream/one", "stream"),
        ("GET", "/api/stream", "stream"),
        ("GET", "/api/sdk/session/one/stream", "stream"),
        ("GET", "/conversations", "read"),
        ("HEAD", "/conversations", "read"),
        ("DELETE", "/conversations/one", "write"),
        ("POST", "/conversations/one/stop", "write"),
        ("BREW", "/conversations", "write"),
    ],
)
def test_the_kind_of_a_request(method: str, path: str, kind: str) -> None:
    assert kind_of(method, path) == kind


async def test_too_many_requests_are_told_when_to_come_again_and_others_are_not_held_up(bus: MemoryBus) -> None:
    ann, again, bob = await person(bus, "user:ann"), await person(bus, "user:ann"), await person(bus, "user:bob")
    async with calling(bus, ACCESS, Limits(rates=SLOW)) as client:
        for number, who in enumerate((ann, again, ann)):
            body = message(id=f"m{number}")
            assert (await client.post("/send", json=body, headers=who.headers)).status_code == 200

        refused = await client.post("/send", json=message(), headers=again.headers)
        bobs = await client.post("/send", json=message(conversation="two", sender="user:bob"), headers=bob.headers)
        reading = await client.get("/conversations", headers=ann.headers)

        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == str(refused.json()["retry_after_s"])
        assert bobs.status_code == reading.status_code == 200


async def test_an_admin_is_not_counted(bus: MemoryBus) -> None:
    async with calling(bus, ACCESS, Limits(rates=SLOW)) as client:
        codes = {(await client.get("/conversations", headers=ADMIN)).status_code for _ in range(10)}

    assert codes == {200}
