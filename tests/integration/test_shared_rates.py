"""Two gateways on one log count a person's requests together."""

from __future__ import annotations

import random
import time

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.directory.keys import create_key
from magent2.models.address import counts_topic
from tests.support.http_client.service import Service
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually

DEADLINE_S = 30.0
BURST = 20


@pytest.fixture
def gateways(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Addresses of two, each a process of its own."""
    monkeypatch.setenv("MAGENT2_LIMIT_READ_PER_S", "0.001")
    monkeypatch.setenv("MAGENT2_LIMIT_READ_BURST", str(BURST))
    service = Service(log_url, engine, process_group, rng)
    for _ in range(2):
        service.open_gateway()
    service.await_gateways()
    return service.addresses


def let_in(url: str, key: str, pause_s: float = 0.0) -> int:
    """Return how many requests pass, with a pause after each, until one is refused."""
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=DEADLINE_S) as client:
        for number in range(2 * BURST):
            answer = client.get("/api/sdk/sessions")
            if answer.status_code == 429:
                return number
            assert answer.status_code == 200, answer.text
            time.sleep(pause_s)
    raise AssertionError("no request was refused")


def told(engine: Engine) -> int:
    """How many requests gateways have told each other of."""
    return sum(sum(record.payload["counts"].values()) for record in engine.read(counts_topic(), limit=1000))


def test_gateways_share_the_count_of_accepted_requests(engine: Engine, gateways: list[str]) -> None:
    ann, bob = (run_sync(engine, create_key, (f"user:{name}",)).text for name in ("ann", "bob"))

    first = let_in(gateways[0], ann)
    eventually(lambda: told(engine) == BURST, DEADLINE_S)
    # The second gateway learns of the count when it next reads the log. Each request until then is let in, so they
    # are spread over the time that it may take.
    second = let_in(gateways[1], ann, pause_s=DEADLINE_S / BURST)

    assert first == BURST
    assert second < BURST
    assert let_in(gateways[1], bob) == BURST
    assert "ann" not in str([record.payload for record in engine.read(counts_topic(), limit=1000)])
