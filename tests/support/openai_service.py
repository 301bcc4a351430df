"""A gateway with its `/v1` on a socket, beside a team on a scripted model server, and OpenAI's client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI

from magent2.bus.interface import Engine
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.server import Gateway, listen
from magent2.roster.registry import Registry
from magent2.roster.spec import Roster
from tests.support.api.sessions import team_at_work
from tests.support.keys import ACCESS, KeyHolder, create_key_holder
from tests.support.model_server import Answer, ModelServer, Reply
from tests.support.openai_shapes import CheckedAnswers
from tests.support.team import roster, team_on
from tests.support.worker_fixture import until


@dataclass(frozen=True, slots=True)
class OpenAIService:
    """The service, its model server, and the key of a user."""

    gateway: Gateway
    model: ModelServer
    url: str
    holder: KeyHolder
    answers: CheckedAnswers

    def client(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key=self.holder.text, max_retries=0, **options)


@asynccontextmanager
async def openai_service(
    bus: Engine, replies: Iterable[Reply] | Answer, who: Roster | None = None, limits: GatewayLimits | None = None
) -> AsyncIterator[OpenAIService]:
    """A service whose answers under `/v1` are all compared with the published types when it ends."""
    team, answers = who or roster(), CheckedAnswers()
    with ModelServer(replies) as model:
        async with team_at_work(bus, runner=team_on(model.url, team)), gateway_for(bus, team, limits) as (gateway, url):
            gateway.app.add_middleware(answers.around)
            yield OpenAIService(gateway, model, url, await create_key_holder(bus, "user:ann"), answers)
    answers.assert_valid()


@asynccontextmanager
async def gateway_for(
    bus: Engine, team: Roster, limits: GatewayLimits | None = None
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway on a free port that requires a key, and the address of its `/v1`."""
    catalogue = Catalogue(Registry.of(team), kind="compatible")
    gateway = Gateway(bus, access=ACCESS, limits=limits, catalogue=catalogue)
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(gateway.serve([listener]))
    await until(lambda: gateway.started)
    try:
        yield gateway, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        gateway.drain()
        await task
