"""What tests of several folders share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.redis_server import RedisServer, skip_if_left_out

# A machine that is busy is no failure, and a run depends on nothing that an earlier one has left behind.
settings.register_profile("magent2", deadline=None, database=None)
settings.load_profile("magent2")

# No test trusts anybody outside; to read all whom the system trusts takes every HTTP client a thirtieth of a second.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "fixtures" / "nobody.pem")


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: to look through them again and again takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for the whole session of this process; tests keep apart by key prefix."""
    skip_if_left_out()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()
