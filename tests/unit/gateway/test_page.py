"""The page as it is handed out: built or plain, kept for as long as its name says, under a strict policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.memory import MemoryBus
from magent2.gateway import problems
from magent2.gateway.routes import page
from tests.support.gateway import app_client

SCRIPT = "console.log('of some length');\n" * 100


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A page as the build leaves it."""
    (tmp_path / "page").mkdir()
    (tmp_path / "index.html").write_text('<script src="./page/index-AbCd1234.js"></script>')
    (tmp_path / "page" / "index-AbCd1234.js").write_text(SCRIPT)
    (tmp_path / "page" / "theme.js").write_text("1")
    return tmp_path


@pytest.fixture
async def client(built: Path) -> AsyncIterator[httpx2.AsyncClient]:
    bus = MemoryBus()
    app = FastAPI()
    problems.install(app, lambda _: None)
    app.include_router(page.page_router(built))
    async with app_client(app) as client:
        yield client
    await bus.aclose()


async def test_the_index_is_never_kept_and_what_has_its_content_in_its_name_for_ever(
    client: httpx2.AsyncClient,
) -> None:
    kept = {path: (await client.get(path)).headers["cache-control"] for path in ("/", "/page/theme.js")}
    hashed = await client.get("/page/index-AbCd1234.js")

    assert kept == {"/": "no-store", "/page/theme.js": "no-cache"}
    assert hashed.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert hashed.text == SCRIPT


async def test_a_file_is_compressed_for_clients_that_accept_it(client: httpx2.AsyncClient) -> None:
    packed = await client.get("/page/index-AbCd1234.js", headers={"accept-encoding": "gzip"})
    plain = await client.get("/page/index-AbCd1234.js", headers={"accept-encoding": "identity"})

    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    assert packed.text == plain.text == SCRIPT


async def test_the_policy_allows_our_own_files_alone_and_no_text_as_script(client: httpx2.AsyncClient) -> None:
    policy = (await client.get("/")).headers["content-security-policy"]

    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_nothing_outside_its_folder_is_handed_out(client: httpx2.AsyncClient) -> None:
    for name in ("index.html", "..%2Findex.html", "%2e%2e/index.html", "other.js"):
        assert (await client.get(f"/page/{name}")).status_code == 404, name


async def test_a_gateway_without_the_page_shows_a_plain_one_that_says_how_to_build_it(tmp_path: Path) -> None:
    bus = MemoryBus()
    app = FastAPI()
    app.include_router(page.page_router(tmp_path))

    async with app_client(app) as client:
        text = (await client.get("/")).text
        script = await client.get("/page/page.js")
    await bus.aclose()

    assert "make web" in text
    assert "make dist" in text
    assert script.status_code == 200
