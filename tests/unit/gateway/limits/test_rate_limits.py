from __future__ import annotations

import random

import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway.limits import DEFAULT_RATES, GatewayLimits, RequestRate, RouteKind
from magent2.gateway.limits import rate_limits as ratelimit
from magent2.gateway.limits.rate_limits import RequestRates, UnknownKeyLimit, bucket_of, kind_of
from magent2.gateway.problems import Problem
from tests.support.gateway import asgi_client, message
from tests.support.keys import ACCESS, ADMIN, create_key_holder

ROUNDING = 1e-6
SLOW: dict[RouteKind, RequestRate] = dict.fromkeys(DEFAULT_RATES, RequestRate(per_s=0.001, burst=3))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(limits: RequestRates, name: str = "ann", kind: RouteKind = "send", count: int = 100) -> int:
    """How many of so many get through at once."""
    for number in range(count):
        try:
            limits.take(name, kind)
        except Problem:
            return number
    return count


def test_a_burst_passes_and_then_the_rate() -> None:
    clock = Clock()
    limits = RequestRates({"send": RequestRate(per_s=10, burst=5)}, clock)

    assert taken(limits) == 5
    clock.now += 0.25
    assert taken(limits) == 2
    clock.now += 60
    assert taken(limits) == 5


def test_names_and_kinds_are_counted_apart() -> None:
    limits = RequestRates({"send": RequestRate(10, 5), "read": RequestRate(10, 7)}, Clock())

    assert [taken(limits), taken(limits, "bob"), taken(limits, kind="read")] == [5, 5, 7]


def test_a_refusal_says_when_to_come_again_and_costs_nothing() -> None:
    clock = Clock()
    limits = RequestRates({"send": RequestRate(per_s=0.1, burst=1)}, clock)
    limits.take("ann", "send")

    for _ in range(3):
        with pytest.raises(Problem) as refused:
            limits.take("ann", "send")
        assert refused.value.headers["retry-after"] == "10"
    clock.now += 10.001
    limits.take("ann", "send")


def test_only_so_many_are_remembered_and_those_who_asked_most_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "COUNTED_MAX", 10)
    limits = RequestRates({"send": RequestRate(per_s=1, burst=5)}, Clock())

    assert taken(limits, "greedy") == 5
    for number in range(50):
        limits.take(f"user:{number}", "send")

    assert len(limits._full_at) <= 10
    assert taken(limits, "greedy") == 0


def test_what_was_let_in_elsewhere_counts_and_what_was_too_much_is_made_good() -> None:
    clock = Clock()
    limits = RequestRates({"send": RequestRate(per_s=10, burst=5), "read": RequestRate(per_s=10, burst=5)}, clock)

    limits.charge(bucket_of("ann", "send"), 3)
    assert [taken(limits), taken(limits, "bob"), taken(limits, kind="read")] == [2, 5, 5]

    limits.charge(bucket_of("ann", "send"), 5)
    clock.now += 0.5
    assert taken(limits) == 0
    clock.now += 0.5
    assert taken(limits) == 5


def test_counts_of_an_unknown_kind_are_ignored() -> None:
    limits = RequestRates({"send": RequestRate(per_s=10, burst=5)}, Clock())

    limits.charge("dance:0123456789abcdef", 5)
    limits.charge("", 5)

    assert limits._full_at == {}


RATE, SHARED_EVERY_S, STEP_S = RequestRate(per_s=20, burst=10), 0.5, 0.05


@pytest.mark.parametrize("seed", range(20))
def test_gateways_that_tell_each_other_let_in_no_more_than_was_stated(seed: int) -> None:
    """Somebody asks several gateways as greedily as chance wants, with pauses; every stretch of time is looked at."""
    rng, clock = random.Random(seed), Clock()
    gateways = [RequestRates({"send": RATE}, clock) for _ in range(rng.randint(2, 6))]
    fresh, admitted = [0] * len(gateways), []
    for step in range(400):
        greed = rng.choice((0, 0, 1, 3, 40))
        now = [taken(gateway, count=rng.randint(0, greed)) for gateway in gateways]
        fresh = [old + new for old, new in zip(fresh, now, strict=True)]
        admitted.append(sum(now))
        clock.now += STEP_S
        if step % round(SHARED_EVERY_S / STEP_S) == 0:
            _tell_each_other(gateways, fresh)
            fresh = [0] * len(gateways)

    more = (len(gateways) - 1) * (RATE.burst + RATE.per_s * SHARED_EVERY_S)
    for begun in range(len(admitted)):
        total = 0
        for ended in range(begun, len(admitted)):
            total += admitted[ended]
            assert total <= RATE.burst + RATE.per_s * (ended - begun) * STEP_S + more + ROUNDING


def _tell_each_other(gateways: list[RequestRates], fresh: list[int]) -> None:
    for mine, gateway in enumerate(gateways):
        for others, count in enumerate(fresh):
            if others != mine and count:
                gateway.charge(bucket_of("ann", "send"), count)


def test_misses_pass_again_after_a_while() -> None:
    clock = Clock()
    misses = UnknownKeyLimit(clock=clock)
    for _ in range(ratelimit.MISSES_BURST):
        misses.check()
        misses.count()

    with pytest.raises(Problem):
        misses.check()
    clock.now += 1
    misses.check()


def test_unknown_keys_limit_only_the_address_they_come_from() -> None:
    misses = UnknownKeyLimit(clock=Clock())
    for _ in range(ratelimit.CLIENT_MISSES_BURST):
        misses.check("203.0.113.9")
        misses.count("203.0.113.9")

    with pytest.raises(Problem):
        misses.check("203.0.113.9")
    misses.check("198.51.100.4")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/send", "send"),
        ("POST", "/api/sdk/session/message", "send"),
        ("POST", "/api/tools/execute", "send"),
        ("GET", "/stream/one", "stream"),
        ("GET", "/api/stream", "stream"),
        ("GET", "/api/sdk/session/one/stream", "stream"),
        ("GET", "/api/sdk/sessions", "read"),
        ("HEAD", "/api/sdk/sessions", "read"),
        ("DELETE", "/api/sdk/session/one", "write"),
        ("POST", "/api/sdk/session/one/stop", "write"),
        ("BREW", "/api/sdk/sessions", "write"),
    ],
)
def test_the_kind_of_a_request(method: str, path: str, kind: str) -> None:
    assert kind_of(method, path) == kind


async def test_too_many_requests_are_told_when_to_come_again_and_others_are_not_held_up(bus: MemoryBus) -> None:
    ann, again, bob = (
        await create_key_holder(bus, "user:ann"),
        await create_key_holder(bus, "user:ann"),
        await create_key_holder(bus, "user:bob"),
    )
    async with asgi_client(bus, ACCESS, GatewayLimits(rates=SLOW)) as client:
        for number, who in enumerate((ann, again, ann)):
            body = message(id=f"m{number}")
            assert (await client.post("/send", json=body, headers=who.headers)).status_code == 200

        refused = await client.post("/send", json=message(), headers=again.headers)
        bobs = await client.post("/send", json=message(conversation="two", sender="user:bob"), headers=bob.headers)
        reading = await client.get("/api/sdk/sessions", headers=ann.headers)

        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == str(refused.json()["retry_after_s"])
        assert bobs.status_code == reading.status_code == 200


async def test_an_admin_is_not_counted(bus: MemoryBus) -> None:
    async with asgi_client(bus, ACCESS, GatewayLimits(rates=SLOW)) as client:
        codes = {(await client.get("/api/sdk/sessions", headers=ADMIN)).status_code for _ in range(10)}

    assert codes == {200}
