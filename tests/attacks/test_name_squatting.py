"""Names: no user can take the name of an agent, make a routing agent answer, or redirect a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Workers
from magent2.directory.connectors import Capabilities, register_connector
from magent2.errors import AddressError, NameTaken
from magent2.gateway.app import create_app
from magent2.gateway.catalogue import Catalogue
from magent2.mail.registration import register_agent
from magent2.models.address import SWEEPER
from magent2.roster.registry import Registry
from magent2.runner.echo import EchoRunner
from magent2.sessions.store import create_session, delete_session, find_session
from magent2.tools.default_tools import known_tools
from magent2.worker.service import WorkerService
from tests.support.audit import whole_log
from tests.support.gateway import app_client
from tests.support.keys import ACCESS, KeyHolder, create_key_holder
from tests.support.waiting import until
from tests.support.worker_fixture import LEASE_S, outputs, run_worker

TEAM = """
[[scenario]]
id = "house"
root = "desk"
supervisor = "chief"

[[scenario.agent]]
name = "desk"

[[scenario.agent]]
name = "chief"

[[scenario.agent]]
name = "later"
"""


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


@pytest.fixture
async def eve(bus: MemoryBus) -> KeyHolder:
    return await create_key_holder(bus, "user:eve")


@pytest.fixture
async def client(bus: MemoryBus, eve: KeyHolder, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A gateway whose agents file is `TEAM`, called with one user's key. No worker has ever run."""
    file = tmp_path / "magent2.toml"
    file.write_text(TEAM)
    catalogue = Catalogue(Registry.of_file(file, known_tools()))
    async with app_client(create_app(bus, access=ACCESS, catalogue=catalogue)) as client:
        client.headers.update(eve.headers)
        yield client


async def post(client: httpx2.AsyncClient, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await client.post(path, json=body)
    return answer.status_code, answer.json()


async def say(client: httpx2.AsyncClient, recipient: str, conversation: str = "c1") -> tuple[int, dict[str, Any]]:
    return await post(client, "/send", conversation_id=conversation, recipient=recipient, content="hello")


async def active_agent(bus: MemoryBus, conversation: str = "c1") -> str | None:
    session = await find_session(Log(bus), conversation)
    return None if session is None else session.active_agent


# --- agents that only route


async def test_no_message_makes_a_routing_agent_active(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    status, problem = await say(client, "agent:chief")

    assert (status, problem["code"]) == (422, "routing_agent")
    assert "desk, later" in problem["detail"]
    assert await active_agent(bus) is None


async def test_neither_a_switch_nor_create_makes_a_routing_agent_active(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await post(client, "/api/sdk/session/create", session_id="c1")

    for path, body in (
        ("/api/sdk/session/set_active_agent", {"session_id": "c1", "agent_name": "chief"}),
        ("/api/sdk/session/create", {"session_id": "c1", "agent_name": "chief"}),
        ("/api/sdk/session/create", {"session_id": "c2", "agent_name": "chief"}),
    ):
        status, problem = await post(client, path, **body)
        assert (status, problem["code"]) == (422, "routing_agent"), path
    assert (await active_agent(bus), await active_agent(bus, "c2")) == ("desk", None)


# --- names of agents


@pytest.mark.parametrize("name", ["desk", "later", "chief"])
async def test_no_conversation_takes_the_name_of_an_agent_that_was_never_started(
    bus: MemoryBus, client: httpx2.AsyncClient, name: str
) -> None:
    sent = await say(client, "agent:desk" if name != "desk" else "agent:later", name)
    created = await post(client, "/api/sdk/session/create", session_id=name)

    assert [(status, problem["code"]) for status, problem in (sent, created)] == [(409, "name_taken")] * 2
    await register_agent(Log(bus), name)


@pytest.mark.parametrize("name", [SWEEPER, "retention:sweep", "outbox:hook", "outbox:"])
async def test_no_conversation_takes_the_name_of_an_inbox_of_the_runtime(
    bus: MemoryBus, client: httpx2.AsyncClient, name: str
) -> None:
    sent = await say(client, "agent:desk", name)
    created = await post(client, "/api/sdk/session/create", session_id=name)

    assert [(status, problem["code"]) for status, problem in (sent, created)] == [(422, "bad_address")] * 2
    with pytest.raises(AddressError, match="reserved"):
        run_sync(bus, create_session, name, "user:eve")
    await register_agent(Log(bus), SWEEPER)
    await register_connector(Log(bus), "hook", "console", Capabilities())


async def test_a_conversation_with_the_name_of_an_agent_does_not_keep_the_others_from_starting(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    run_sync(bus, create_session, "Bob", "user:eve")
    service = WorkerService(bus, dict.fromkeys(("Ada", "Bob"), EchoRunner()), lease_s=LEASE_S)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(service.run())
        await until(lambda: [worker.agents for worker in bus.call(Workers())] == [("Ada",)])
        await service.drain(0.0)
    (line,) = (record for record in caplog.records if record.message == "an agent cannot be served")
    assert "of user:eve is called 'Bob'" in vars(line)["error"]
    assert "give the agent another name" in vars(line)["error"]


async def test_the_error_for_the_operator_says_that_a_deletion_does_not_free_the_name(bus: MemoryBus) -> None:
    run_sync(bus, create_session, "Bob", "user:eve")
    run_sync(bus, delete_session, "Bob")

    with pytest.raises(NameTaken, match=r"that was deleted .* even after a deletion"):
        await WorkerService(bus, {"Bob": EchoRunner()}).run()


# --- agents that are not known


async def test_mail_for_an_unknown_agent_waits_and_does_not_make_it_active(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    status, sent = await say(client, "agent:Ada")

    assert status == 200
    assert "Ada" in sent["notice"]
    assert await active_agent(bus) is None
    async with run_worker(bus, EchoRunner()):
        await until(lambda: outputs(bus, "c1") == ["hello"])
    assert (await say(client, "agent:Ada"))[0] == 200
    assert await active_agent(bus) == "Ada"  # now it is known


async def test_an_unknown_agent_does_not_replace_the_active_one(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await say(client, "agent:desk")
    await say(client, "agent:nobody")

    assert await active_agent(bus) == "desk"
    await say(client, "chat:c1")
    assert [len(whole_log(bus, inbox)) for inbox in ("chat:desk", "chat:nobody")] == [2, 1]


async def test_a_message_to_an_agent_is_not_put_into_the_conversation_of_that_name(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    """The inbox of an agent and the log of a conversation of the same name are one topic."""
    run_sync(bus, create_session, "anns", "user:ann")
    status, problem = await say(client, "agent:anns")

    assert (status, problem["code"]) == (422, "unknown_agent")
    assert whole_log(bus, "chat:anns") == []


async def test_an_agent_cannot_have_the_name_of_a_deleted_conversation(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    run_sync(bus, create_session, "anns", "user:ann")
    run_sync(bus, delete_session, "anns")

    status, problem = await say(client, "agent:anns")

    assert (status, problem["code"]) == (422, "unknown_agent")
