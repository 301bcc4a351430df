from __future__ import annotations

import logging
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.gateway.access.auth import Access, parse_hosts
from magent2.gateway.app import create_app
from magent2.gateway.proxy import SCHEME_KEY, ProxySettings, client_address, route_path
from magent2.gateway.server import choose_access, choose_proxy_settings
from magent2.settings import Settings
from magent2.telemetry.logs import fields_of
from tests.support.gateway import app_client, message
from tests.support.keys import ACCESS, ADMIN

PROXY, STRANGER, VISITOR = "10.0.0.7", "203.0.113.9", "198.51.100.4"


def request(client: str = PROXY, path: str = "/send", **headers: str) -> dict[str, Any]:
    """The scope of a request; header names with underscores for dashes."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "inner", **headers}.items()]
    return {"type": "http", "client": (client, 4711), "scheme": "http", "path": path, "headers": pairs}


def met(front: ProxySettings, scope: dict[str, Any]) -> dict[str, Any]:
    front.apply(scope)
    return scope


BEHIND = ProxySettings.parse(trusted=["10.0.0.0/8", "::1"])


# --- what proxies say


@pytest.mark.parametrize(
    ("chain", "client"),
    [
        (VISITOR, VISITOR),
        (f"{VISITOR}:5123", VISITOR),
        ("2001:db8::5", "2001:db8::5"),
        ("[2001:db8::5]:443", "2001:db8::5"),
        (f"1.2.3.4, {VISITOR}", VISITOR),  # what stands before it, the visitor may have written
        (f"{VISITOR}, 10.1.1.1, 10.2.2.2", VISITOR),  # through proxies of ours
        ("10.1.1.1", "10.1.1.1"),  # from a machine of ours
        (f"unknown, {VISITOR}", VISITOR),
        ("::ffff:198.51.100.4", VISITOR),
        ("unknown", PROXY),
        ("", PROXY),
    ],
)
def test_the_client_is_the_nearest_address_that_is_no_proxy_of_ours(chain: str, client: str) -> None:
    assert client_address(met(BEHIND, request(x_forwarded_for=chain))) == client


def test_several_headers_are_one_chain() -> None:
    scope = request(x_forwarded_for=VISITOR)
    scope["headers"].append((b"x-forwarded-for", b"10.1.1.1"))

    assert client_address(met(BEHIND, scope)) == VISITOR


@pytest.mark.parametrize("front", [ProxySettings(), BEHIND])
def test_a_stranger_is_not_believed(front: ProxySettings) -> None:
    told = {"x_forwarded_for": VISITOR, "x_forwarded_proto": "https", "x_forwarded_host": "evil.example"}

    scope = met(front, request(STRANGER, **told))

    assert client_address(scope) == STRANGER
    assert (scope["scheme"], SCHEME_KEY in scope) == ("http", False)
    assert (b"host", b"inner") in scope["headers"]


def test_scheme_and_host_are_those_of_the_nearest_proxy() -> None:
    told = {"x_forwarded_proto": "http, https", "x_forwarded_host": "evil.example, chat.example.org"}

    scope = met(BEHIND, request(**told))

    assert scope["scheme"] == scope[SCHEME_KEY] == "https"
    assert [value for name, value in scope["headers"] if name == b"host"] == [b"chat.example.org"]


def test_a_scheme_that_is_none_is_not_believed() -> None:
    assert met(BEHIND, request(x_forwarded_proto="javascript"))["scheme"] == "http"


def test_a_request_through_no_network_has_no_client() -> None:
    scope = {**request(x_forwarded_for=VISITOR), "client": None}

    assert client_address(met(BEHIND, scope)) == ""


@given(st.text(max_size=80), st.text(max_size=40), st.text(max_size=40))
def test_whatever_a_proxy_writes_is_taken_or_left(chain: str, scheme: str, host: str) -> None:
    headers = {"x_forwarded_for": chain, "x_forwarded_proto": scheme, "x_forwarded_host": host}
    scope = request()
    scope["headers"] += [(n.replace("_", "-").encode(), v.encode("latin-1", "replace")) for n, v in headers.items()]

    met(BEHIND, scope)

    assert scope["scheme"] in ("http", "https")
    assert client_address(scope)


# --- the sub-path


@pytest.mark.parametrize("path", ["/magent2/send", "/send"])
def test_a_proxy_may_leave_the_sub_path_or_take_it_off(path: str) -> None:
    scope = met(ProxySettings.parse("/magent2/"), request(path=path))

    assert (scope["path"], scope["root_path"], route_path(scope)) == ("/magent2/send", "/magent2", "/send")


@pytest.mark.parametrize("text", ["magent2", "/a b", "/a/../b", "/./a", "//", "/a//b", "/" + "a" * 300, "/ä", "/a?b"])
def test_a_root_path_that_is_no_path_is_refused(text: str) -> None:
    if text == "//":
        assert ProxySettings.parse(text).root_path == ""
        return
    with pytest.raises(SettingsError, match="a root path is a path such as /magent2"):
        ProxySettings.parse(text)


@pytest.mark.parametrize("text", ["/stream", "/api/v2", "/send", "/page"])
def test_a_root_path_that_begins_like_a_route_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="choose another"):
        ProxySettings.parse(text)


def test_every_route_has_a_first_step_that_no_root_path_may_have(bus: MemoryBus) -> None:
    paths = create_app(bus).openapi()["paths"]

    for path in {name.split("/")[1] for name in paths} - {""}:
        with pytest.raises(SettingsError):
            ProxySettings.parse(f"/{path}")


@pytest.mark.parametrize("text", ["proxy.example.org", "10.0.0.1/8", "300.1.1.1", ""])
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(SettingsError, match="a trusted proxy is an address or a network"):
        ProxySettings.parse(trusted=[text])


# --- names


@pytest.mark.parametrize("name", ["chat.example.org:443", "https://chat.example.org", "", "a/b", "user@host"])
def test_an_allowed_host_is_a_name_without_a_port(name: str) -> None:
    with pytest.raises(SettingsError, match="without a port"):
        parse_hosts([name])


@pytest.mark.parametrize(
    ("loopback", "hosts", "host", "known"),
    [
        (True, [], "127.0.0.1:8700", True),
        (True, [], "chat.example.org", False),
        (True, ["Chat.Example.org."], "chat.example.org:443", True),
        (True, ["chat.example.org"], "localhost", True),
        (True, ["chat.example.org"], "evil.example", False),
        (False, [], "anything", True),
        (False, ["chat.example.org"], "evil.example", False),
        (False, ["chat.example.org"], "127.0.0.1:8700", True),  # a probe on the machine itself
    ],
)
def test_which_names_are_answered(loopback: bool, hosts: list[str], host: str, known: bool) -> None:
    assert Access(loopback=loopback, hosts=parse_hosts(hosts)).accepts_host(host) is known


def test_the_environment_says_it_too_and_the_command_line_says_it_louder() -> None:
    settings = Settings.read(
        {
            "MAGENT2_TOKEN": "t" * 20,
            "MAGENT2_ROOT_PATH": "/here",
            "MAGENT2_TRUSTED_PROXIES": "10.0.0.0/8, ::1",
            "MAGENT2_ALLOWED_HOSTS": "a.example,b.example",
        }
    )

    assert choose_proxy_settings(settings) == ProxySettings.parse("/here", ["10.0.0.0/8", "::1"])
    assert choose_proxy_settings(settings, "/there", ["192.0.2.1"]) == ProxySettings.parse("/there", ["192.0.2.1"])
    assert choose_access(settings, "127.0.0.1").hosts == {"a.example", "b.example"}
    assert choose_access(settings, "127.0.0.1", hosts=["c.example"]).hosts == {"c.example"}


# --- over HTTP

FRONT = ProxySettings.parse("/magent2", ["127.0.0.1"])  # which is who calls in these tests
PUBLIC = {"x-forwarded-for": VISITOR, "x-forwarded-proto": "https", "x-forwarded-host": "chat.example.org"}


def below(bus: MemoryBus, access: Access = ACCESS) -> Any:
    return app_client(create_app(bus, access=access, proxy=FRONT))


@pytest.mark.parametrize("root", ["", "/magent2"])
async def test_routes_answer_below_the_sub_path(bus: MemoryBus, root: str) -> None:
    async with below(bus) as client:
        sent = await client.post(f"{root}/send", json=message(), headers=ADMIN)
        answers = [await client.get(f"{root}{path}", headers=ADMIN) for path in ("/health", "/api/sdk/session/one")]
        listed = await client.get(f"{root}/api/sdk/sessions", headers=ADMIN)
        streamed = await client.get(f"{root}/stream/one?max_events=1", headers=ADMIN)

    assert [answer.status_code for answer in (sent, *answers, listed, streamed)] == [200] * 5


async def test_the_door_is_as_shut_below_the_sub_path(bus: MemoryBus) -> None:
    async with below(bus) as client:
        shut = [await client.get(f"/magent2{path}") for path in ("/api/workers", "/api/sdk/sessions", "/metrics")]
        door = await client.post("/magent2/send", json=message())
        opened = [await client.get(f"/magent2{path}") for path in ("/health", "/", "/page/page.js")]

    assert [answer.status_code for answer in (*shut, door)] == [401] * 4
    assert [answer.status_code for answer in opened] == [200] * 3


async def test_problems_and_the_schema_name_the_sub_path(bus: MemoryBus) -> None:
    async with below(bus) as client:
        problems = [
            await client.get("/magent2/nowhere", headers=ADMIN),
            await client.get("/magent2/api/sdk/sessions"),
            await client.get("/magent2/api/sdk/session/none", headers=ADMIN),
            await client.get("/magent2/api/sdk/sessions?limit=no", headers=ADMIN),
            await client.post("/magent2/send", json={}, headers=ADMIN),
        ]
        schema = (await client.get("/magent2/openapi.json")).json()

    assert all(answer.json()["type"] == f"/magent2/problems/{answer.json()['code']}" for answer in problems)
    assert schema["servers"] == [{"url": "/magent2"}]


async def test_the_page_is_read_below_the_sub_path_and_its_links_are_relative(bus: MemoryBus) -> None:
    async with below(bus) as client:
        bare = await client.get("/magent2")
        page = await client.get("/magent2/")
        linked = [part.split('"')[0] for part in page.text.replace('href="', 'src="').split('src="')[1:]]
        files = [
            await client.get(httpx2.URL("http://testserver/magent2/").join(link)) for link in linked if link != "data:,"
        ]

    assert (bare.status_code, bare.headers["location"]) == (307, "/magent2/")
    assert bare.headers["x-content-type-options"] == "nosniff"
    assert linked
    assert all((httpx2.URL(link).is_relative_url and not link.startswith("/")) or link == "data:," for link in linked)
    assert all(answer.status_code == 200 for answer in files)


async def test_the_audit_names_the_client_that_the_proxy_saw(bus: MemoryBus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "magent2.audit")
    async with below(bus) as client:
        await client.post("/magent2/send", json=message(), headers={**ADMIN, **PUBLIC})
        await client.get("/magent2/api/workers", headers={"authorization": "Bearer wrong", **PUBLIC})

    acted, refused = (fields_of(line) for line in caplog.records)
    assert (acted["client"], refused["client"]) == (VISITOR, VISITOR)
    assert refused["path"] == "/api/workers"


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://chat.example.org", 200), ("http://chat.example.org", 403), ("https://evil.example", 403)],
)
async def test_a_page_of_the_public_name_may_call_and_no_other(bus: MemoryBus, origin: str, status: int) -> None:
    access = Access(loopback=True, same_origin=True, hosts=frozenset({"chat.example.org"}))
    async with below(bus, access) as client:
        answer = await client.get("/magent2/api/sdk/sessions", headers={"origin": origin, **PUBLIC})

    assert answer.status_code == status


async def test_the_error_for_an_unknown_host_says_how_to_allow_it(bus: MemoryBus) -> None:
    async with below(bus, Access(loopback=True)) as client:
        answer = await client.get("/magent2/health", headers=PUBLIC)

    assert (answer.status_code, answer.json()["code"]) == (421, "foreign_host")
    assert "--allowed-host" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),  # as a dual-stack socket reports it
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),  # one client has the whole network
        ("fe80::1%eth0", "fe80::/64"),
        ("10.1.2.3", None),  # the trusted proxy: its connections are those of many clients
        ("", ""),
    ],
)
def test_connections_are_counted_by_address_and_not_for_a_trusted_proxy(peer: str, key: str | None) -> None:
    assert ProxySettings.parse(trusted=["10.0.0.0/8"]).connection_key(peer) == key
