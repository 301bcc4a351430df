"""The Redis engine against the conformance suite, on a real server."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest
import redis

from magent2.bus.interface import Engine
from magent2.bus.redis_adapter import RedisBus
from tests.contracts.bus import BusContract
from tests.contracts.bus.driver import EngineOpener
from tests.support.redis_server import RedisServer


@pytest.mark.redis
class TestRedisBus(BusContract):
    persistent = True
    shared = True

    @pytest.fixture
    def opener(self, redis_server: RedisServer) -> EngineOpener:
        self.url, self.prefix = redis_server.url, uuid.uuid4().hex
        return lambda name: RedisBus(redis_server.url, prefix=f"{self.prefix}:{name}")

    def append_malformed(self, engine: Engine, topic: str) -> None:
        with closing(redis.Redis.from_url(self.url)) as client:
            client.xadd(f"{self.prefix}:main:t:{topic}", {"p": "not JSON"}, id="0-*")
