"""The client during gateway crashes and lost responses: no message or event is missing or duplicated."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.operations import Append, Trim
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.client import AsyncClient, Client, ConversationEvent, SentMessage
from magent2.errors import (
    AnswerPending,
    GatewayUnreachable,
    Gone,
    Magent2Error,
    NotFound,
    RunFailed,
    RunStopped,
    Unauthorized,
)
from tests.support.audit import whole_log
from tests.support.command_line import RunningServer
from tests.support.processes import ProcessGroup
from tests.support.proxy import LossyProxy
from tests.support.waiting import eventually

DEADLINE_S = 30.0
EVENTS = 300


@pytest.fixture
def gateway(process_group: ProcessGroup, tmp_path: Path) -> RunningServer:
    """A gateway without a worker."""
    return RunningServer(process_group, tmp_path, worker=False)


@pytest.fixture
def bus(gateway: RunningServer) -> Iterator[SqliteBus]:
    bus = SqliteBus(gateway.bus_url.removeprefix("sqlite:///"))
    yield bus
    bus.close()


def write(bus: SqliteBus, first: int, count: int, conversation: str = "c1") -> None:
    for number in range(first, first + count):
        payload = {"event": "token", "conversation_id": conversation, "text": str(number), "index": number}
        bus.call(Append(records=(NewRecord(f"stream:{conversation}", payload),)))


class Collector:
    """Follows in a thread and keeps what came."""

    def __init__(self, follow: Callable[[], Iterator[ConversationEvent]]) -> None:
        self.events: list[ConversationEvent] = []
        self.error: Magent2Error | None = None
        self._follow = follow
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._follow():
                self.events.append(event)
                if len(self.events) == EVENTS:
                    return
        except Magent2Error as error:
            self.error = error

    def wait_for(self, count: int) -> None:
        eventually(lambda: self.error or len(self.events) >= count, DEADLINE_S)
        assert self.error is None

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def test_a_follower_sees_every_event_once_over_gateways_that_are_killed(gateway: RunningServer, bus: SqliteBus) -> None:
    with Client(gateway.url, gateway.token) as client:
        collector = Collector(lambda: client.follow("c1"))
        for part in range(3):
            write(bus, part * 100, 50)
            collector.wait_for(part * 100 + 10)
            gateway.kill()
            write(bus, part * 100 + 50, 50)
            gateway.restart()
        collector.join()

    assert collector.error is None
    assert [event.seq for event in collector.events] == list(range(1, EVENTS + 1))
    assert [event.text for event in collector.events] == [str(number) for number in range(EVENTS)]


async def test_an_asynchronous_follower_sees_every_event_once_over_a_restart(
    gateway: RunningServer, bus: SqliteBus
) -> None:
    seqs: list[int] = []
    write(bus, 0, 50)
    async with AsyncClient(gateway.url, gateway.token) as client, aclosing(client.follow("c1")) as events:
        async for event in events:
            seqs.append(event.seq)
            if event.seq == 20:
                await asyncio.to_thread(gateway.kill)
                write(bus, 50, 50)
                await asyncio.to_thread(gateway.restart)
            if event.seq == 100:
                break

    assert seqs == list(range(1, 101))


def test_a_message_sent_during_an_outage_arrives_once(gateway: RunningServer, bus: SqliteBus) -> None:
    sent: list[SentMessage] = []
    with Client(gateway.url, gateway.token) as client:
        client.health()
        gateway.kill()
        sending = threading.Thread(target=lambda: sent.append(client.send("bob", "hello", conversation_id="c1")))
        sending.start()
        gateway.restart()
        sending.join(DEADLINE_S)

    assert [record.payload["id"] for record in whole_log(bus, "chat:bob")] == [sent[0].envelope_id]


def test_a_message_whose_reply_was_lost_arrives_once(gateway: RunningServer, bus: SqliteBus) -> None:
    with (
        LossyProxy(gateway.port, random.Random(7), reply_loss=0.3) as proxy,
        Client(f"http://127.0.0.1:{proxy.port}", gateway.token) as client,
    ):
        sent = [client.send("bob", str(number), conversation_id="c1") for number in range(10)]

    assert proxy.losses.replies > 0
    assert [record.payload["content"] for record in whole_log(bus, "chat:bob")] == list("0123456789")
    assert [record.payload["id"] for record in whole_log(bus, "chat:bob")] == [one.envelope_id for one in sent]


def test_a_follower_behind_a_bad_line_sees_every_event_once(gateway: RunningServer, bus: SqliteBus) -> None:
    write(bus, 0, 150)
    with (
        LossyProxy(gateway.port, random.Random(3)) as proxy,
        Client(f"http://127.0.0.1:{proxy.port}", gateway.token) as client,
    ):
        collector = Collector(lambda: client.follow("c1"))
        collector.wait_for(1)
        for first in (150, 200, 250):
            proxy.cut()
            write(bus, first, 50)
        collector.join()

    assert [event.seq for event in collector.events] == list(range(1, EVENTS + 1))


def test_records_removed_by_retention_show_as_a_gap(gateway: RunningServer, bus: SqliteBus) -> None:
    write(bus, 0, 20)
    bus.call(Trim("stream:c1", keep=5))
    with Client(gateway.url, gateway.token) as client:
        events = client.follow("c1", since=3)
        gap, first = next(events), next(events)
        events.close()

    assert (gap.kind, gap.data["floor"], gap.seq) == ("gap", 15, 15)
    assert first.seq == 16


def test_a_conversation_that_is_deleted_ends_its_followers_and_its_waiters(gateway: RunningServer) -> None:
    with Client(gateway.url, gateway.token) as client:
        sent = client.send("bob", "hello", conversation_id="c1")
        collector = Collector(lambda: client.follow("c1"))
        collector.wait_for(1)
        client.delete("c1")
        collector.join()
        late = list(client.follow("c1"))
        with pytest.raises(Gone):
            client.wait(sent, 5)
        with pytest.raises(Gone):
            client.send("bob", "again", conversation_id="c1")

    assert [(event.kind, event.data.get("reason")) for event in collector.events][-1] == ("end", "deleted")
    assert [(event.kind, event.data["reason"]) for event in late] == [("end", "deleted")]


def test_a_client_gives_up_after_its_retry_time(gateway: RunningServer) -> None:
    gateway.kill()
    with Client(gateway.url, gateway.token, patience_s=0.2) as client:
        with pytest.raises(GatewayUnreachable, match="magent2 serve"):
            client.send("bob", "hello")
        with pytest.raises(GatewayUnreachable):
            next(client.follow("c1"))


def test_a_wrong_token_is_not_retried(gateway: RunningServer) -> None:
    with Client(gateway.url, "wrong-wrong-wrong-wrong") as client:
        with pytest.raises(Unauthorized) as caught:
            client.agents()
        with pytest.raises(Unauthorized):
            next(client.follow("c1"))

    assert caught.value.status == 401


def test_waiting_ends_in_time_also_on_a_stream_that_is_alive(gateway: RunningServer, bus: SqliteBus) -> None:
    with Client(gateway.url, gateway.token) as client:
        sent = client.send("nobody", "hello", conversation_id="c1")
        writing = threading.Timer(0.1, lambda: write(bus, 0, 3))
        writing.start()
        with pytest.raises(AnswerPending, match="the run goes on"):
            client.wait(sent, 0.5)
        writing.join()


async def test_waiting_on_a_loop_ends_in_time(gateway: RunningServer) -> None:
    async with AsyncClient(gateway.url, gateway.token) as client:
        sent = await client.send("nobody", "hello")
        with pytest.raises(AnswerPending):
            await client.wait(sent, 0.1)


# --- with a worker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with ProcessGroup() as process_group:
        yield RunningServer(process_group, tmp_path_factory.mktemp("server"))


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, server.token) as client:
        yield client


async def test_answers_of_one_conversation_are_told_apart(client: AsyncClient) -> None:
    texts = [f"message {number}" for number in range(10)]
    answers = await asyncio.gather(*(client.ask("general", text, conversation_id="busy") for text in texts))

    assert [answer.text for answer in answers] == texts
    assert len({answer.run_id for answer in answers}) == 10


async def test_the_events_of_a_run_come_without_those_of_others(client: AsyncClient) -> None:
    other, sent = [await client.send("general", text, conversation_id="two") for text in ("not this", "but this")]
    events = [event async for event in client.replies(sent)]

    assert other.seq < sent.seq
    assert [event.text for event in events if event.kind == "token"] == ["but ", "this"]
    assert [event.kind for event in events] == ["run", "token", "token", "output"]


async def test_a_run_that_ends_without_an_answer_is_an_error_that_says_why(client: AsyncClient) -> None:
    with pytest.raises(RunFailed, match="told to fail") as failed:
        await client.ask("general", "fail")
    sent = await client.send("general", "slow", conversation_id="endless")
    async with aclosing(client.replies(sent)) as events:
        assert (await anext(events)).kind == "run"
    stopping = await client.stop("endless")
    with pytest.raises(RunStopped):
        await client.wait(sent)

    assert failed.value.run_id is not None
    assert stopping.agent == "general"


async def test_the_asynchronous_client_reads_conversations_events_and_agents(client: AsyncClient) -> None:
    await client.ask("general", "hello", conversation_id="looked-over")  # so that one page does not show all
    await client.ask("general", "hello", conversation_id="looked-at")
    page = await client.conversations(limit=1)
    events = await client.events("looked-at", limit=2)
    rest = await client.events("looked-at", events.next_since)
    agents = {agent.name: agent for agent in await client.agents()}

    one = await client.conversation("looked-at")
    assert page.conversations[0] == one.model_copy(update={"usage": None})
    assert page.next is not None
    assert [event.seq for event in (*events.events, *rest.events)] == [1, 2, 3, 4, 5]
    assert (events.has_more, rest.has_more) == (True, False)
    assert agents["general"].alive
    assert (await client.health())["status"] == "ok"
    with pytest.raises(NotFound):
        await client.conversation("never-heard-of")
    await _bury_and_mend(client)


async def _bury_and_mend(client: AsyncClient) -> None:
    sent = await client.send("general", "fail once", conversation_id="mended")
    with pytest.raises(RunFailed):
        await client.wait(sent)
    letters: list[Any] = [row for row in (await client.dead("general")).letters if row.conversation_id == "mended"]
    await client.drop_dead("general", letters[0].seq)
    with pytest.raises(NotFound):
        await client.retry_dead("general", letters[0].seq)
    await client.delete("mended")
