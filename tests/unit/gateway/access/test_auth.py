from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.gateway.access.auth import Access, host_name
from magent2.gateway.server import choose_access
from magent2.settings import Settings, is_loopback
from magent2.token import TokenFile
from tests.support.gateway import asgi_client

TOKEN = "0123456789abcdefghij"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "app.localhost"])
def test_names_of_this_machine(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name", ["", "example.com", "localhost.example.com", "10.0.0.1", "0.0.0.0", "127.0.0.1.nip.io"]
)
def test_names_of_others(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.parametrize(
    ("host", "name"), [("[::1]:8700", "::1"), ("LocalHost:80", "localhost"), ("127.0.0.1", "127.0.0.1"), ("[bad", "")]
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:8700", "localhost:8700", True),
        ("http://LOCALHOST:8700", "localhost:8700", True),
        ("https://example.com", "example.com", True),
        ("http://example.com:80", "example.com", True),
        ("http://localhost:9999", "localhost:8700", False),
        ("http://evil.example", "localhost:8700", False),
        ("null", "localhost:8700", False),
        ("null", "", False),
        ("http://[bad", "[bad", False),
        ("http://localhost:port", "localhost:8700", False),
    ],
)
def test_an_origin_is_ours_when_it_is_the_host_that_was_called(origin: str, host: str, same: bool) -> None:
    assert Access.by_token(TOKEN, loopback=False).accepts_origin(origin, host) is same


def test_access_does_not_print_its_token() -> None:
    assert TOKEN not in repr(Access.by_token(TOKEN, loopback=True))


async def test_without_the_token_nothing_but_the_doors_is_open(bus: MemoryBus) -> None:
    async with asgi_client(bus, Access.by_token(TOKEN, loopback=False)) as client:
        for path in ("/api/workers", "/api/sdk/sessions", "/api/dead", "/metrics", "/stream/one", "/nowhere"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/ready", "/", "/page/page.js", "/openapi.json"):
            assert (await client.get(path)).status_code == 200, path


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer é"]
)
async def test_a_wrong_token_is_refused(bus: MemoryBus, given: str) -> None:
    async with asgi_client(bus, Access.by_token(TOKEN, loopback=False)) as client:
        answer = await client.get("/api/workers", headers={b"authorization": given.encode()})

        assert answer.status_code == 401
        assert (await client.get("/api/workers", headers=BEARER)).status_code == 200


async def test_on_loopback_a_foreign_host_is_refused_even_with_the_token(bus: MemoryBus) -> None:
    async with asgi_client(bus, Access.by_token(TOKEN, loopback=True)) as client:
        foreign = await client.get("/api/workers", headers={**BEARER, "host": "rebound.example:8700"})
        own = await client.get("/api/workers", headers={**BEARER, "host": "localhost:8700"})

        assert (foreign.status_code, foreign.json()["code"]) == (421, "foreign_host")
        assert own.status_code == 200


async def test_a_page_of_another_origin_is_refused(bus: MemoryBus) -> None:
    async with asgi_client(bus, Access.by_token(TOKEN, loopback=False)) as client:
        foreign = await client.get("/api/workers", headers={**BEARER, "origin": "http://evil.example"})
        own = await client.get("/api/workers", headers={**BEARER, "origin": "http://testserver"})

        assert (foreign.status_code, foreign.json()["code"]) == (403, "foreign_origin")
        assert own.status_code == 200


async def test_an_app_alone_is_open(bus: MemoryBus) -> None:
    async with asgi_client(bus) as client:
        answer = await client.get("/api/workers", headers={"host": "any.example", "origin": "http://other.example"})

        assert answer.status_code == 200


async def test_a_new_token_in_the_file_is_good_at_the_next_request_and_the_old_one_is_not(
    bus: MemoryBus, tmp_path: Path
) -> None:
    file = TokenFile.within(tmp_path)
    old = file.obtain()
    async with asgi_client(bus, Access.by_file(file, loopback=False)) as client:
        assert (await client.get("/api/workers", headers={"authorization": f"Bearer {old}"})).status_code == 200

        new = file.rotate()

        assert (await client.get("/api/workers", headers={"authorization": f"Bearer {old}"})).status_code == 401
        assert (await client.get("/api/workers", headers={"authorization": f"Bearer {new}"})).status_code == 200


async def test_a_token_file_that_goes_or_is_spoiled_leaves_the_last_token_standing(
    bus: MemoryBus, tmp_path: Path
) -> None:
    file = TokenFile.within(tmp_path)
    token = file.obtain()
    async with asgi_client(bus, Access.by_file(file, loopback=False)) as client:
        bearer = {"authorization": f"Bearer {token}"}
        assert (await client.get("/api/workers", headers=bearer)).status_code == 200

        file.path.write_text("short")
        assert (await client.get("/api/workers", headers=bearer)).status_code == 200
        assert (await client.get("/api/workers", headers={"authorization": "Bearer short"})).status_code == 401
        file.path.unlink()
        assert (await client.get("/api/workers", headers=bearer)).status_code == 200


def settings(tmp_path: Path, **variables: str) -> Settings:
    return Settings.read({"MAGENT2_DATA_DIR": str(tmp_path), **variables})


def test_on_loopback_a_token_is_made_that_only_its_owner_can_read(tmp_path: Path) -> None:
    access = choose_access(settings(tmp_path), "127.0.0.1")

    file = TokenFile.within(tmp_path)
    assert (access.token, access.loopback) == (file.read(), True)
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_public_address_requires_the_token(tmp_path: Path) -> None:
    public = choose_access(settings(tmp_path), "0.0.0.0")

    assert public.token == TokenFile.within(tmp_path).read()
    assert not public.has_token(b"")


def test_a_public_address_with_a_token_answers_to_any_host(tmp_path: Path) -> None:
    given = choose_access(settings(tmp_path, MAGENT2_TOKEN=TOKEN), "0.0.0.0")

    assert (given.token, given.loopback) == (TOKEN, False)
    with pytest.raises(SettingsError):
        choose_access(settings(tmp_path), "0.0.0.0", "weak")
