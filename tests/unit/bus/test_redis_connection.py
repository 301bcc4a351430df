"""How a URL of Redis becomes a socket: redis-py does it, and we take the socket from its connection."""

from __future__ import annotations

import inspect
import socket

import pytest
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from magent2.bus.redis_engine.connection import ServerAddress
from magent2.bus.redis_engine.primary import SentinelGroup
from magent2.errors import SettingsError
from tests.support.fake_redis import fake_redis


def test_redis_py_keeps_its_socket_where_we_take_it() -> None:
    """Canary: `_sock` is private. If it is renamed, `ServerAddress.open` has to follow."""
    assert Connection(port=1)._sock is None  # type: ignore[no-untyped-call]
    assert "_sock" in inspect.getsource(AbstractConnection.disconnect)


def test_an_open_socket_belongs_to_the_caller() -> None:
    with fake_redis(redis_version="7.0.0") as url:
        opened = ServerAddress.parse(url).open()

        assert isinstance(opened, socket.socket)
        assert opened.fileno() >= 0
        opened.close()


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [
        ("redis://", Connection, "localhost:6379"),
        ("redis://ann:secret@example.test:7000/3", Connection, "example.test:7000"),  # pragma: allowlist secret
        ("rediss://example.test", SSLConnection, "example.test:6379"),
        ("unix:///run/redis.sock", UnixDomainSocketConnection, "/run/redis.sock"),
    ],
)
def test_a_url_says_how_to_connect_and_prints_without_credentials(url: str, kind: type, name: str) -> None:
    address = ServerAddress.parse(url)

    assert (address.connection_class, str(address)) == (kind, name)
    assert "secret" not in repr(address)


def test_a_url_of_sentinels_has_their_login_and_that_of_the_servers() -> None:
    logins = (
        "ann:secret@{}?sentinel_username=bob&sentinel_password=hidden&ssl_cert_reqs=none"  # pragma: allowlist secret
    )
    group = SentinelGroup.parse(f"rediss+sentinel://{logins.format('h1:7000,[::1],h3/my%20log/3')}")

    assert [str(sentinel) for sentinel in group.sentinels] == ["h1:7000", "::1:26379", "h3:26379"]
    assert {sentinel.options["username"] for sentinel in group.sentinels} == {"bob"}
    assert {sentinel.connection_class for sentinel in (*group.sentinels, group.server)} == {SSLConnection}
    assert (group.primary_name, group.server.options["db"], group.server.options["username"]) == ("my log", 3, "ann")
    assert group.server.options["ssl_cert_reqs"] == "none"
    assert not {"secret", "hidden"} & set(repr(group).replace("'", " ").split())


def test_options_that_are_not_ours_are_ignored() -> None:
    address = ServerAddress.parse("redis://localhost/0?max_connections=3&decode_responses=true")

    assert not {"max_connections", "decode_responses"} & set(address.options)


@pytest.mark.parametrize("url", ["http://localhost", "redis://localhost:port", "rediss://localhost?ssl_cert_reqs=some"])
def test_a_url_that_cannot_be_used_is_refused_before_any_contact(url: str) -> None:
    with pytest.raises(SettingsError, match="not a Redis URL"):
        ServerAddress.parse(url)
