"""The whole service in real processes, killed and frozen at random, with clients that always reconnect."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from magent2.bus.interface import Engine
from tests.support.audit import assert_clean, whole_log
from tests.support.http_client.audit import stream_findings
from tests.support.http_client.client_crowd import ClientCrowd
from tests.support.http_client.service import TOKEN, Service
from tests.support.http_client.slow_reader import SlowReader
from tests.support.processes import ProcessGroup

WORKERS = GATEWAYS = 2
FEW = 2  # messages that are on their way when a gateway is killed

TOKENS, WORD_CHARS = 1100, 440  # together nearly as long as a text may be: more than buffers on the way take


@dataclass(frozen=True, slots=True)
class Day:
    """How much is said, by how many, and how much goes wrong: a gateway killed, a worker killed, a worker frozen."""

    messages: int
    conversations: int
    followers: int
    rounds: int  # of three troubles each


SHORT = Day(messages=60, conversations=6, followers=20, rounds=4)
LONG = Day(messages=500, conversations=20, followers=60, rounds=20)


def texts(day: Day, conversation: int) -> list[str]:
    numbers = range(conversation, day.messages, day.conversations)
    return [f"message {number} of many, in some words" for number in numbers]


def make_trouble(service: Service, crowd: ClientCrowd, day: Day) -> None:
    for number in range(day.rounds):
        share = day.messages // day.rounds
        left = share - FEW - day.conversations
        service.kill_gateway(lambda: crowd.let_send(FEW))
        crowd.let_send(day.conversations)  # while it is down, one for each conversation
        crowd.let_arrive(left - left // 2)
        service.kill_one()
        crowd.let_arrive(left // 2 + (day.messages - share * day.rounds if number == day.rounds - 1 else 0))
        service.freeze_one()


async def live_through(service: Service, crowd: ClientCrowd, day: Day) -> None:
    names = [f"c{n}" for n in range(day.conversations)]
    late = day.followers // 4 // day.conversations + 1
    for number in range(day.followers - late * day.conversations):
        crowd.listen(names[number % day.conversations])
    async with asyncio.TaskGroup() as people:
        for number, name in enumerate(names):
            people.create_task(crowd.talk(name, texts(day, number), late))
        people.create_task(asyncio.to_thread(make_trouble, service, crowd, day))
    await asyncio.to_thread(service.await_gateways)
    await asyncio.to_thread(service.wait_for, day.messages)
    await asyncio.to_thread(service.drain_all)
    await crowd.hear_all()
    await asyncio.to_thread(service.close_gateways)


async def audit(service: Service, day: Day) -> None:
    for _ in range(WORKERS):
        service.start_worker()
    for _ in range(GATEWAYS):
        service.open_gateway()
    service.await_ready()
    async with ClientCrowd(service) as crowd:
        await live_through(service, crowd, day)
    assert_clean(service.findings() + crowd.findings())
    check_that_it_was_hard(service, crowd, day)


def check_that_it_was_hard(service: Service, crowd: ClientCrowd, day: Day) -> None:
    print(
        f"{service.posted()} messages, {len(crowd.followers)} followers, {dict(service.happened)},"
        f" {service.takeovers()} takeovers, {dict(crowd.happened)}, {crowd.landed()} landed and were sent again"
    )
    assert service.posted() == day.messages
    assert len(crowd.followers) == day.followers
    assert service.happened == {"gateway kills": day.rounds, "kills": day.rounds, "freezes": day.rounds}
    assert crowd.happened["resumed streams"] > 0, "no stream ever went on elsewhere: the test shows nothing"
    assert crowd.happened["retried sends"] > 0, "no send was ever tried again: the test shows nothing"
    assert service.takeovers() > 0, "no run was ever taken over: the test shows nothing"


async def test_every_message_is_answered_once_and_every_client_sees_the_log(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    await audit(Service(log_url, engine, process_group, rng), SHORT)


@pytest.mark.soak
async def test_500_messages_over_20_conversations_survive_many_crashes_over_http(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    await audit(Service(log_url, engine, process_group, rng), LONG)


def test_a_slow_reader_is_cut_off_twice_and_has_every_token_in_order(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    service = Service(log_url, engine, process_group, rng)
    service.start_worker(think_max_s=0.0, lease_s=60.0)
    port = service.open_gateway()
    service.await_ready()
    text = " ".join(f"{number}-{'x' * WORD_CHARS}" for number in range(TOKENS))
    with SlowReader(port, "slow", TOKEN) as reader:
        service.send("slow", text)
        reader.read(TOKENS // 10)
        service.wait_for(1)  # all is there, and most of it waits for the reader
        for final_reports in (False, True):
            service.kill_gateway()
            if final_reports:  # what the gateway had already handed over; else that is lost too
                reader.read_to_the_cut()
            assert len(reader.seen) < TOKENS, "nothing was left to resume: the test shows nothing"
            service.await_gateway(port)
            reader.connect()
            reader.read(len(reader.seen) + 1)
        log = whole_log(engine, "stream:slow")
        reader.read(len(log))

    assert_clean(stream_findings(log, reader.seen))
    tokens = [event.data["text"] for event in reader.seen if event.kind == "token"]
    assert len(tokens) == TOKENS
    assert "".join(tokens) == text
    service.drain_all()
    service.close_gateways()
    assert_clean(service.findings())
