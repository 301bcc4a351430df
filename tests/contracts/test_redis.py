"""The Redis engine against the conformance suite, on a real server."""

from __future__ import annotations

import uuid

import pytest

from magent2.bus.redis_adapter import RedisBus
from tests.contracts.bus import BusContract
from tests.contracts.opening import Opener
from tests.support.redis_server import RedisServer


@pytest.mark.redis
class TestRedisBus(BusContract):
    persistent = True
    shared = True

    @pytest.fixture
    def opener(self, redis_server: RedisServer) -> Opener:
        test = uuid.uuid4().hex
        return lambda name: RedisBus(redis_server.url, prefix=f"{test}:{name}:")
