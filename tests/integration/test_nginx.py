"""A gateway behind nginx, with the configuration that the project ships: TLS, a sub-path, and unbuffered streams."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Append
from magent2.gateway.limits import BODY_MAX_BYTES
from magent2.models.envelope import TokenEvent
from magent2.sessions.stream import stream_record
from tests.support.certificates import make_certificate
from tests.support.gateway import message, parse_frames
from tests.support.http_client.new_user import NewUser, RunningProgram
from tests.support.http_client.service import TOKEN, quiet_port
from tests.support.nginx import Nginx, find_nginx
from tests.support.waiting import eventually

pytestmark = pytest.mark.nginx

NAME, ROOT_PATH = "magent2.example.org", "/magent2"  # as the shipped file has them
VISITOR = "127.0.0.2"  # nginx itself calls the gateway from 127.0.0.1
ONE_BY_ONE = 200
DROPS, EVENTS_PER_DROP = 6, 150
NGINX_CAP_BYTES = 2 << 20


@dataclass(slots=True)
class Site:
    nginx: Nginx
    gateway: RunningProgram
    bus: Engine
    tls: ssl.SSLContext

    def client(self) -> httpx2.Client:
        transport = httpx2.HTTPTransport(verify=self.tls, local_address=VISITOR)
        return httpx2.Client(
            transport=transport,
            base_url=f"https://127.0.0.1:{self.nginx.port}{ROOT_PATH}/",
            headers={"host": NAME, "authorization": f"Bearer {TOKEN}"},
            timeout=30,
        )

    def write(self, conversation: str, count: int) -> None:
        for index in range(count):
            self.append(conversation, index)

    def append(self, conversation: str, index: int) -> None:
        event = TokenEvent(conversation_id=conversation, text=f"word {index} ", index=index)
        self.bus.call(Append(records=(stream_record(event),)))

    def audited(self) -> list[dict[str, Any]]:
        lines = (orjson.loads(line) for line in self.gateway.said.splitlines() if line.startswith("{"))
        return [line for line in lines if line["logger"] == "magent2.audit"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    find_nginx()
    folder = tmp_path_factory.mktemp("nginx")
    make_certificate(folder)
    url, port = f"sqlite:///{folder / 'log.db'}", quiet_port()
    nginx = Nginx(folder, port)
    bus = connect(url)
    with NewUser(_home(folder), MAGENT2_LOG_LEVEL="info") as newcomer:
        gateway = newcomer.start(_gateway_command(url, port))
        gateway.await_gateway(str(port))
        nginx.start()
        yield Site(nginx, gateway, bus, ssl.create_default_context(cafile=str(folder / "cert.pem")))
        nginx.stop()
    bus.close()


def _home(folder: Path) -> Path:
    (folder / "home").mkdir()
    return folder / "home"


def _gateway_command(url: str, port: int) -> list[str]:
    front = ["--root-path", ROOT_PATH, "--trusted-proxy", "127.0.0.1", "--allowed-host", NAME]
    place = ["--bus", url, "--port", str(port), "--token", TOKEN, "--log-format", "json"]
    return [".venv/bin/magent2", "gateway", *place, *front]


def follow(answer: httpx2.Response) -> Iterator[tuple[int, str]]:
    """(seq, text) of the events of a stream as they come."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield int(fields["id"]), orjson.loads(fields["data"])["text"]
        fields = {}


def test_events_arrive_one_by_one(site: Site) -> None:
    with site.client() as client, client.stream("GET", "stream/slow") as answer:
        events = follow(answer)
        for index in range(ONE_BY_ONE):  # the next is written when this one has been read
            site.append("slow", index)
            assert next(events) == (index + 1, f"word {index} ")

    assert "no-transform" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_browsers_get_http_2(site: Site) -> None:
    address = ("127.0.0.1", site.nginx.port)
    tls = ssl.create_default_context(cafile=str(site.nginx.folder / "cert.pem"))
    tls.set_alpn_protocols(["h2", "http/1.1"])

    with socket.create_connection(address) as plain, tls.wrap_socket(plain, server_hostname=address[0]) as secure:
        assert secure.selected_alpn_protocol() == "h2"


def test_dropped_connections_resume_without_hole_or_repeat(site: Site) -> None:
    total = DROPS * EVENTS_PER_DROP
    writer = threading.Thread(target=site.write, args=("long", total))
    seen: list[int] = []
    writer.start()

    for drop in range(DROPS):
        with site.client() as client, client.stream("GET", "stream/long", headers=_resume(seen)) as answer:
            for seq, _ in follow(answer):
                seen.append(seq)
                if len(seen) >= (drop + 1) * EVENTS_PER_DROP:
                    break  # in the middle of what comes: the connection is closed as it is

    writer.join()
    assert seen == list(range(1, total + 1))


def _resume(seen: list[int]) -> dict[str, str]:
    return {"last-event-id": str(seen[-1])} if seen else {}


def test_a_proxy_that_is_started_anew_costs_a_reader_nothing(site: Site) -> None:
    seen: list[int] = []
    for index in range(10):
        site.append("anew", index)

    with site.client() as client, client.stream("GET", "stream/anew") as answer:
        events = follow(answer)
        seen += [next(events)[0] for _ in range(10)]
        site.nginx.stop()
        with pytest.raises(httpx2.RemoteProtocolError):
            next(events)
    site.append("anew", 10)
    site.nginx.start()

    with site.client() as client, client.stream("GET", "stream/anew", headers=_resume(seen)) as answer:
        assert next(follow(answer))[0] == 11
    assert seen == list(range(1, 11))


def test_the_audit_names_the_visitor_and_not_the_proxy_nor_what_the_visitor_wrote(site: Site) -> None:
    with site.client() as client:
        sent = client.post("send", json=message(conversation="audited"), headers={"x-forwarded-for": "192.0.2.77"})

    assert sent.status_code == 200, sent.text
    acted = eventually(lambda: [line for line in site.audited() if line["ids"].get("conversation_id") == "audited"])
    assert [line["client"] for line in acted] == [VISITOR]


def test_the_page_its_files_and_the_schema_are_below_the_sub_path(site: Site) -> None:
    with site.client() as client:
        page = client.get("")
        script = client.get("page/page.js")
        schema = client.get("openapi.json").json()
        bare = client.get(f"https://127.0.0.1:{site.nginx.port}{ROOT_PATH}")
        missing = client.get("api/sdk/session/none").json()

    assert (page.status_code, script.status_code, bare.status_code) == (200, 200, 301)
    assert schema["servers"] == [{"url": ROOT_PATH}]
    assert missing["type"] == f"{ROOT_PATH}/problems/unknown_session"


def test_a_page_of_the_public_name_may_call(site: Site) -> None:
    with site.client() as client:
        own = client.get("api/sdk/sessions", headers={"origin": f"https://{NAME}"})
        plain = client.get("api/sdk/sessions", headers={"origin": f"http://{NAME}"})
        other = client.get("api/sdk/sessions", headers={"host": "evil.example"})

    assert (own.status_code, plain.status_code, other.status_code) == (200, 403, 421)


def test_a_name_with_a_slash_comes_through(site: Site) -> None:
    with site.client() as client:
        client.post("send", json=message(conversation="a/b c"))
        found = client.get("api/sdk/session/a%2Fb%20c")
        stream = client.get("stream/a%2Fb%20c", params={"max_events": 1})

    assert found.json()["session_id"] == "a/b c"
    assert [event.data["conversation_id"] for event in parse_frames(stream.text)] == ["a/b c"] * 2


@pytest.mark.parametrize(
    ("size", "kind"), [(BODY_MAX_BYTES + 1, "application/problem+json"), (NGINX_CAP_BYTES + 1, "text/html")]
)
def test_a_body_beyond_the_limit_is_refused_by_nginx_or_the_gateway(site: Site, size: int, kind: str) -> None:
    with site.client() as client:
        answer = client.post("send", content=b" " * size, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.headers["content-type"]) == (413, kind)
