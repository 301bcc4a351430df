"""Redis with TLS, with a certificate that the test creates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.errors import BusUnavailable, Magent2Error
from tests.support.audit import whole_log
from tests.support.certificates import make_certificate
from tests.support.redis_server import RedisServer, free_port, skip_if_left_out

pytestmark = pytest.mark.redis

TOPIC = "stream:one"


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    skip_if_left_out()
    make_certificate(tmp_path)
    port = free_port()
    files = ("--tls-cert-file", str(tmp_path / "cert.pem"), "--tls-key-file", str(tmp_path / "key.pem"))
    server = RedisServer(tmp_path, "--tls-port", str(port), *files, "--tls-auth-clients", "no", "--save", "")
    server.start()
    yield port
    server.stop()


def put(n: int) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}),))


async def test_both_faces_and_followers_work_through_tls(tls_port: int, tmp_path: Path) -> None:
    bus = connect(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={tmp_path / 'cert.pem'}")

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


def test_a_certificate_of_an_unknown_authority_is_refused(tls_port: int) -> None:
    bus = connect(f"rediss://localhost:{tls_port}/0")

    with pytest.raises(Magent2Error, match=r"(?i)certificate.*SSL_CERT_FILE"):
        bus.call(put(1))
    bus.close()


def test_the_authorities_of_the_system_can_be_replaced_as_everywhere(
    tls_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    bus = connect(f"rediss://localhost:{tls_port}/0")

    bus.call(put(1))

    assert len(whole_log(bus, TOPIC)) == 1
    bus.close()


def test_a_plain_connection_to_a_tls_port_ends_in_bounded_time(tls_port: int) -> None:
    bus = connect(f"redis://localhost:{tls_port}/0")

    with pytest.raises(BusUnavailable):
        bus.call(put(1))
    bus.close()
