from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.gateway.app import create_app
from magent2.mail.registration import register_agent
from tests.support.gateway import app_client


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """A log on which a worker has once served Ada, the agent of these tests."""
    bus = MemoryBus()
    await register_agent(Log(bus), "Ada")
    yield bus
    await bus.aclose()


@pytest.fixture
def app(bus: MemoryBus) -> FastAPI:
    """An open gateway on the bus."""
    return create_app(bus)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with app_client(app) as client:
        yield client
