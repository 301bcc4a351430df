"""The Redis engine against the conformance suite, on a real server."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest
import redis

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine.functions import TOPICS_PAGE
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

    def count_work(self, engine: Engine, operation: Operation[Any]) -> int:
        """Count the commands that the server executes, and the topics that it looks through in pages."""
        with closing(redis.Redis.from_url(self.url)) as client:
            client.config_resetstat()
            engine.call(operation)
            calls = {name: int(stats["calls"]) for name, stats in client.info("commandstats").items()}
        return sum(calls.values()) + TOPICS_PAGE * calls.get("cmdstat_zrevrangebyscore", 0)

    def jump_clock(self, seconds: float) -> None:
        """Change the offset to the server's clock: the engine sees the same sum as when the clock itself is set."""
        with closing(redis.Redis.from_url(self.url)) as client:
            client.hincrby(f"{self.prefix}:main:clock", "o", round(seconds * 1000))
