"""The long form of the attacks: minutes of hostile connections, and a flooding user who is erased at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread

import pytest

from magent2.client import Client
from magent2.errors import Magent2Error
from tests.attacks.test_request_heads import CHUNK, GROWTH_MAX_MIB, SMALL_HEADERS
from tests.attacks.test_slow_bodies import HEALTH, REFUSED
from tests.support.command_line import CommandLine, served_team
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.waiting import eventually

DURATION_S = 120.0
ATTACKERS = 10
LOOKS_MIN = 20  # answers of /health in this time; a gateway that is blocked gives far fewer
HEALTH_MAX_S = 10.0  # generous: the attackers use the same machine
ANSWERS = 20
WORD = "xylophonequartz"  # pragma: allowlist secret

HEADS = (b"GET /health HTTP/1.1\r\nhost: localhost\r\n", b"GET /health HTTP/1.1\r\nhost: localhost\r\nlong: ")


def attack_connections(gateway: GatewayProcess, number: int, over: Event) -> None:
    """Send endless heads, dripping bodies and pipelined requests, one connection after the other."""
    while not over.is_set():
        client = gateway.connect()
        if number % 3 == 0:
            client.send(HEADS[number % 2])
            while not over.is_set() and client.send(SMALL_HEADERS if number % 2 else CHUNK):
                pass
        elif number % 3 == 1:
            client.send(REFUSED)
            while not over.is_set() and client.send(b" "):
                over.wait(0.05)
        else:
            client.send(HEALTH * 100)
        client.close()


@contextmanager
def threads(*work: Thread) -> Iterator[None]:
    for thread in work:
        thread.start()
    try:
        yield
    finally:
        for thread in work:
            thread.join()


@pytest.mark.soak
def test_a_gateway_answers_probes_and_stays_small_under_hostile_connections(tmp_path: Path) -> None:
    over, slowest, looks = Event(), 0.0, 0
    with gateway_process(tmp_path) as gateway:
        assert gateway.health() == 200
        before = gateway.memory_mib()
        work = [Thread(target=attack_connections, args=(gateway, number, over)) for number in range(ATTACKERS)]
        with threads(*work):
            try:
                end = time.monotonic() + DURATION_S
                while time.monotonic() < end:
                    begun = time.monotonic()
                    assert gateway.health() == 200
                    slowest, looks = max(slowest, time.monotonic() - begun), looks + 1
                    over.wait(0.5)
            finally:
                over.set()
        growth = gateway.memory_mib() - before

    print(f"\n{looks} probes, slowest {slowest:.2f} s, memory {growth:+.0f} MiB")
    assert looks >= LOOKS_MIN
    assert slowest < HEALTH_MAX_S
    assert growth < GROWTH_MAX_MIB


def answer_times(client: Client, count: int) -> list[float]:
    found: list[float] = []
    for _ in range(count):
        begun = time.monotonic()
        client.ask("general", "hello", timeout_s=60)
        found.append(time.monotonic() - begun)
    return found


def flood(client: Client, over: Event) -> None:
    """Start slow runs in ever new conversations, as fast as the rate limit of one user allows."""
    number = 0
    while not over.is_set():
        number += 1
        try:
            client.send("general", f"compare the weather in Oslo, Rome and Lima {WORD}", conversation_id=f"f{number}")
        except Magent2Error:  # the rate limit
            over.wait(0.5)


def key_of(commands: CommandLine, user: str) -> str:
    return str(commands.run("keys", "create", "--scope", f"user:{user}", "--json").json["key"])


@pytest.mark.soak
def test_a_flood_by_one_key_leaves_answers_to_another_and_is_erased_without_a_trace(tmp_path: Path) -> None:
    over = Event()
    with served_team(tmp_path, MAGENT2_LIMIT_CONCURRENCY="16") as commands:
        url = commands.variables["MAGENT2_URL"]
        with Client(url, key_of(commands, "ann")) as ann, Client(url, key_of(commands, "bob")) as bob:
            quiet = answer_times(bob, ANSWERS)
            with threads(Thread(target=flood, args=(ann, over))):
                try:
                    flooded = answer_times(bob, ANSWERS)
                finally:
                    over.set()
        erased = commands.run("erase", "user:ann", "--yes", "--json", "--wait")

        def found() -> list[str]:
            files = sorted(filter(Path.is_file, tmp_path.glob("*.db*")))
            return [file.name for file in files if WORD.encode() in file.read_bytes()]

        eventually(lambda: not found(), 60)

    print(f"\nanswer to another user: p50 {median(quiet):.3f} s quiet, {median(flooded):.3f} s beside the flood")
    assert median(flooded) < max(10 * median(quiet), 5.0)
    assert erased.json["scrubbed"]
    assert len(erased.json["conversations"]) > 1
