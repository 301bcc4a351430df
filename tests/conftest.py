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


# Thousands of tests are collected, and stay: to look through them for garbage takes a second, again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of long forms alone are not looked into where long forms are left out."""
    left_out = config.getoption("markexpr") == "not soak"
    return True if left_out and collection_path.name.endswith("_soak.py") else None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for the whole session of this process; tests keep apart by key prefix."""
    skip_if_left_out()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()
