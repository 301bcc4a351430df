"""Redis and PostgreSQL with TLS, with a certificate that the test creates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.errors import BusUnavailable, Magent2Error, StorageUnwritable
from tests.support.audit import whole_log
from tests.support.certificates import make_certificate
from tests.support.ports import quiet_port
from tests.support.postgres_server import FAST, ROLE, PostgresServer
from tests.support.redis_server import PRIMARY_NAME, RedisServer, Sentinel, skip_if_left_out

TOPIC = "stream:one"


@pytest.fixture
def postgres_port(tmp_path: Path) -> Iterator[int]:
    """The port of a PostgreSQL server that accepts only connections with TLS."""
    make_certificate(tmp_path)
    with PostgresServer(FAST) as server:
        server.create()
        rules = server.data / "pg_hba.conf"
        rules.write_text(rules.read_text().replace("host ", "hostssl "))
        server.use_tls(tmp_path / "cert.pem", tmp_path / "key.pem")
        server.start()
        yield server.port


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    skip_if_left_out()
    make_certificate(tmp_path)
    port = quiet_port()
    files = ("--tls-cert-file", str(tmp_path / "cert.pem"), "--tls-key-file", str(tmp_path / "key.pem"))
    server = RedisServer(tmp_path, "--tls-port", str(port), *files, "--tls-auth-clients", "no", "--save", "")
    server.start()
    yield port
    server.stop()


def put(n: int) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}),))


@pytest.mark.redis
async def test_both_faces_and_followers_work_through_tls(tls_port: int, tmp_path: Path) -> None:
    await use_both_faces_and_follow(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={tmp_path / 'cert.pem'}")


async def use_both_faces_and_follow(url: str) -> None:
    bus = connect(url)

    bus.call(put(1))
    await bus.acall(put(2))
    followed = bus.follow(TOPIC, after=1)
    first = await anext(followed)
    await bus.acall(put(3))
    second = await anext(followed)
    await followed.aclose()  # type: ignore[attr-defined]

    assert [first.payload["n"], second.payload["n"]] == [2, 3]
    assert len(whole_log(bus, TOPIC)) == 3
    await bus.aclose()


@pytest.mark.redis
def test_a_certificate_of_an_unknown_authority_is_refused(tls_port: int) -> None:
    bus = connect(f"rediss://localhost:{tls_port}/0")

    with pytest.raises(Magent2Error, match=r"(?i)certificate.*SSL_CERT_FILE"):
        bus.call(put(1))
    bus.close()


@pytest.mark.redis
def test_the_authorities_of_the_system_can_be_replaced_as_everywhere(
    tls_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    bus = connect(f"rediss://localhost:{tls_port}/0")

    bus.call(put(1))

    assert len(whole_log(bus, TOPIC)) == 1
    bus.close()


@pytest.mark.redis
def test_a_plain_connection_to_a_tls_port_ends_in_bounded_time(tls_port: int) -> None:
    bus = connect(f"redis://localhost:{tls_port}/0")

    with pytest.raises(BusUnavailable):
        bus.call(put(1))
    bus.close()


@pytest.fixture
def sentinel_url(tmp_path: Path) -> Iterator[str]:
    """A URL of Sentinels that lacks their password; servers and Sentinels use TLS and have passwords of their own."""
    skip_if_left_out()
    make_certificate(tmp_path)
    port, sentinel_port = quiet_port(), quiet_port()
    files = {"tls-cert-file": "cert.pem", "tls-key-file": "key.pem", "tls-ca-cert-file": "cert.pem"}
    tls = {**{name: str(tmp_path / file) for name, file in files.items()}, "tls-auth-clients": "no"}
    folders = tmp_path / "server", tmp_path / "sentinel"
    for folder in folders:
        folder.mkdir()
    options = [part for name, value in tls.items() for part in (f"--{name}", value)]
    server = RedisServer(folders[0], "--tls-port", str(port), *options, "--save", "", "--requirepass", "one")
    settings = [f"{name} {value}" for name, value in tls.items()]
    login = f"sentinel auth-pass {PRIMARY_NAME} one"
    more = f"tls-port {sentinel_port}", "tls-replication yes", "requirepass two", login
    sentinel = Sentinel(folders[1], port, *settings, *more)
    try:
        server.start()
        sentinel.start()
        hosts = f":one@localhost:{sentinel_port}"
        yield f"rediss+sentinel://{hosts}/{PRIMARY_NAME}/0?ssl_ca_certs={tmp_path / 'cert.pem'}"
    finally:
        for each in (sentinel, server):
            each.stop()


@pytest.mark.redis
def test_sentinels_and_servers_with_tls_and_logins(sentinel_url: str) -> None:
    bus = connect(f"{sentinel_url}&sentinel_password=two")

    bus.call(put(1))

    assert len(whole_log(bus, TOPIC)) == 1
    bus.close()


@pytest.mark.redis
def test_a_refused_login_of_a_sentinel_names_the_option(sentinel_url: str) -> None:
    bus = connect(sentinel_url)

    with pytest.raises(StorageUnwritable, match=r"is a Sentinel, its login is .*sentinel_password="):
        bus.call(put(1))
    bus.close()


@pytest.mark.postgres
async def test_postgres_verifies_a_certificate_only_if_it_is_told_to_as_in_all_programs_with_libpq(
    postgres_port: int, tmp_path: Path
) -> None:
    """One server for all of it: starting it takes longer than the rest."""
    url = f"postgresql://{ROLE}@localhost:{postgres_port}/{ROLE}"
    trusted, unknown = tmp_path / "cert.pem", Path(os.environ["SSL_CERT_FILE"])
    await use_both_faces_and_follow(f"{url}?sslmode=verify-full&sslrootcert={trusted}")

    for refused in (f"sslmode=verify-full&sslrootcert={unknown}", "sslmode=disable"):
        bus = connect(f"{url}?{refused}")
        with pytest.raises(Magent2Error, match=r"(?i)certificate|no encryption"):
            bus.call(put(4))
        bus.close()
    bus = connect(f"{url}?sslmode=require")
    assert bus.call(put(4)).seqs == (4,)
    bus.close()
