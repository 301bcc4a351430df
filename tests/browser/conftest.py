"""One browser per module, and one gateway per root path, because a gateway takes a while to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.support import browser as support
from tests.support.browser import PageServer, PageUser, open_page
from tests.support.processes import ProcessGroup


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    support.skip_if_excluded()
    with support.browser() as launched:
        yield launched


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], PageServer]]:
    """Start a gateway for a root path, or return the one that is running."""
    started: dict[str, PageServer] = {}
    with ProcessGroup() as process_group:

        def server(root_path: str) -> PageServer:
            if root_path not in started:
                started[root_path] = PageServer(process_group, tmp_path_factory.mktemp("server"), root_path)
            return started[root_path]

        yield server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, servers: Callable[[str], PageServer]) -> PageServer:
    """The gateway of a test module. A module constant `ROOT_PATH` puts it under that path, as behind a proxy."""
    support.skip_if_excluded()
    return servers(getattr(request.module, "ROOT_PATH", ""))


@pytest.fixture
def user(chromium: Browser, server: PageServer) -> Iterator[PageUser]:
    """A signed-in user; the model waits at its gate where a message says so."""
    server.close_gate()
    with open_page(chromium, server) as user:
        yield user.sign_in()
