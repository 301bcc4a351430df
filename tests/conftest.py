"""Settings and fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.forked_commands import ForkedCommands
from tests.support.postgres_server import FAST, PostgresServer, Schemas
from tests.support.redis_server import RedisServer, skip_if_left_out

# A shell that starts the tests in the background makes them ignore SIGINT, and every child inherits that. The tests of
# Ctrl-C would then wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ORDER = "ORDER"  # environment variable with the seed of another order and of other generated values

# A slow machine must not fail a test, and a run must not depend on examples that an earlier run has stored. Without
# `ORDER`, every run has the same generated values: what a run finds must be repeatable, and a commit is not to blame
# for what only another value shows. Runs with `ORDER`, and the soak forms, look for such values.
settings.register_profile("magent2", deadline=None, database=None, derandomize=not os.environ.get(ORDER))
settings.load_profile("magent2")

# Tests trust no certificates from outside. Reading the system's list would cost each HTTP client 30 ms.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "fixtures" / "nobody.pem")

# Thousands of collected test objects stay alive. Each garbage collection over them would take a second.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first, or shuffle if `ORDER` is set: `make test ORDER=7` always has the same order.

    Files are shuffled, and the tests in each. The tests of a file that share a server stay together: pytest would start
    another one each time that its engine changes.
    """
    seed = os.environ.get(ORDER)
    if not seed:
        # The longest tests start first: at the end, they would leave a core idle.
        items.sort(key=lambda item: "simulation" not in item.path.parts)
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    numbers = random.Random(seed)
    order = list(files.values())
    numbers.shuffle(order)
    for tests in order:
        numbers.shuffle(tests)
        tests.sort(key=_server_of)
    items[:] = [item for tests in order for item in tests]


def _server_of(item: pytest.Item) -> str:
    """Return the engine of the server that a file has one of per engine; empty for other tests."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("server", "")) if callspec is not None else ""


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that hold only soak tests when soak tests are deselected."""
    left_out = config.getoption("markexpr") == "not soak"
    return True if left_out and collection_path.name.endswith("_soak.py") else None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server per test process and session; tests are separated by key prefix."""
    skip_if_left_out()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def forked_commands() -> Iterator[ForkedCommands]:
    """Starts programs for tests that have to name a command, and kills them at the end of the session."""
    with ForkedCommands() as commands:
        yield commands


@pytest.fixture(scope="session")
def mcp_command(forked_commands: ForkedCommands, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command that starts `tests.support.mcp_server`. As a new program, that would import for a second."""
    program = tmp_path_factory.mktemp("mcp") / "mcp-server"
    forked_commands.write_script(program, "-m", "tests.support.mcp_server")
    # The first start waits for the imports of the fork server. On a busy machine, a connection may not take that long.
    subprocess.run([program], stdin=subprocess.DEVNULL, check=True)
    return (str(program),)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server per test process and session; tests are separated by schema. A crash of the machine may lose data."""
    with PostgresServer(FAST) as server:
        server.start()
        yield server


@pytest.fixture
def postgres_schemas(postgres_server: PostgresServer) -> Iterator[Schemas]:
    """Addresses of empty logs on the shared server."""
    schemas = Schemas(postgres_server)
    yield schemas
    schemas.give_back()
