"""The address of a gateway, and the HTTP settings, timeouts and retries that both clients share."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx2

from magent2.errors import GatewayBusy, GatewayUnreachable, SettingsError, TlsFailed, TransientError
from magent2.settings import Settings, is_loopback, tls_verification
from magent2.token import TokenFile, check_token

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 30.0
LONG_POLL_S = 20.0  # of a longer wait, in one request
SILENCE_TIMEOUT_S = 45.0  # on a stream: three heartbeats
EVENT_MAX_BYTES = 80 << 20  # above the largest payload that a log can be configured to accept

PATIENCE_S = 30.0  # without a response from the gateway
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 10.0

# Results of OpenSSL's verification (X509_V_ERR_…), and its reasons for a peer that does not speak TLS.
_EXPIRED, _WRONG_NAME = 10, 62
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A gateway's URL and token. The token is not part of the repr."""

    url: str
    token: str | None = field(repr=False)

    @classmethod
    def find(cls, url: str | None, token: str | None, settings: Settings | None = None) -> GatewayAddress:
        """Use the arguments, else the environment, else the gateway on this machine.

        A URL may contain its token as `serve` prints it, `#token=…`. The token file of this machine is used only for
        gateways on this machine: its token is never sent to another host.
        """
        if url is not None and token is not None:
            base_url, _ = _parse_url(url)
            return cls(base_url, check_token(token))
        chosen = settings or Settings.read()
        base_url, url_token = _parse_url(url or chosen.gateway_url)
        found = token or url_token or chosen.token
        if found is None and is_loopback(urlsplit(base_url).hostname or ""):
            found = TokenFile.within(chosen.data_dir).read()
        return cls(base_url, None if found is None else check_token(found))

    @property
    def is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https://")


def _parse_url(url: str) -> tuple[str, str | None]:
    """Split a URL into the base URL and the token in its fragment."""
    try:
        parts = urlsplit(url.strip())
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets, or a port that is not a number
        parts, has_host = urlsplit(""), False
    if not has_host or parts.username is not None or parts.query:
        # Error messages end up in logs, so this one does not repeat a URL that may contain a secret.
        shown = "that" if "@" in url or "#" in url else repr(url[:80])
        raise SettingsError(f"{shown} is not the URL of a gateway; use one like http://127.0.0.1:8700")
    token = parse_qs(parts.fragment).get("token", [None])[0]
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), token


def http_options(address: GatewayAddress) -> dict[str, object]:
    """Return the arguments of the HTTP client.

    Proxies from the environment are not used for this machine. Certificates, which take long to load, are loaded for
    `https` only.
    """
    headers = {"Accept": "application/json, text/event-stream"}
    if address.token is not None:
        headers["Authorization"] = f"Bearer {address.token}"
    return {
        "base_url": address.url,
        "headers": headers,
        "timeout": httpx2.Timeout(RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        "trust_env": not address.is_loopback,
        "verify": tls_verification() if address.is_encrypted else False,
        "limits": httpx2.Limits(max_connections=None),
    }


def connection_lost(error: httpx2.TransportError, address: GatewayAddress) -> GatewayUnreachable:
    """Convert an error of the HTTP library. `sent` says whether the request may have arrived."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLError) and isinstance(error, _NOT_SENT):
        return TlsFailed(f"no TLS connection to {address.url}: {_tls_fault(cause, address)}")
    if isinstance(error, _NOT_SENT):
        hint = "'magent2 serve' starts one" if address.is_loopback else "check the URL and that the gateway runs"
        reason = str(error) or type(error).__name__
        return GatewayUnreachable(f"no gateway answers at {address.url} ({reason}); {hint}")
    hint = "" if address.is_encrypted else "; if it uses TLS, use https://"
    reason = f"the connection to {address.url} was lost ({str(error) or type(error).__name__})"
    return GatewayUnreachable(f"{reason}; check that a gateway runs there{hint}", sent=True)


def _tls_fault(error: ssl.SSLError, address: GatewayAddress) -> str:
    """Say what is wrong with a TLS connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _WRONG_NAME:
            host = urlsplit(address.url).hostname
            return f"its certificate is not valid for {host!r}; use a name that the certificate contains"
        if error.verify_code == _EXPIRED:
            return "its certificate has expired; renew it on the server, and check the clock of this machine"
        return (
            f"its certificate is not trusted ({error.verify_message});"
            " name the file with the certificate of its authority in SSL_CERT_FILE"
        )
    if error.reason in _NOT_TLS:
        return "what answers there does not use TLS; use http://"
    return f"{error.reason or error}; check the TLS settings of the server"


def may_repeat(error: TransientError, repeatable: bool) -> bool:
    """Whether a failed request may be sent again: it is repeatable, or it did not arrive."""
    return repeatable or not (isinstance(error, GatewayUnreachable) and error.sent)


class Backoff:
    """Pauses between attempts: they grow, and end after `max_elapsed_s` seconds without a success."""

    def __init__(self, max_elapsed_s: float) -> None:
        self._max_elapsed_s = max_elapsed_s
        self._failures = 0
        self._first_failure_at: float | None = None

    def reset(self) -> None:
        """Record a success."""
        self._failures, self._first_failure_at = 0, None

    def pause_s(self, error: TransientError, now: float, first_s: float = BACKOFF_FIRST_S) -> float:
        """Return how long to wait before the next attempt.

        Raises `error` when the time is used up, and at once if another attempt would fail in the same way.
        """
        if isinstance(error, TlsFailed):
            raise error
        if self._first_failure_at is None:
            self._first_failure_at = now
        left_s = self._first_failure_at + self._max_elapsed_s - now
        if left_s <= 0:
            raise error
        requested_s = error.retry_after_s if isinstance(error, GatewayBusy) else None
        pause_s = requested_s or min(first_s * 2**self._failures, BACKOFF_MAX_S)
        self._failures = min(self._failures + 1, 16)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311  it only keeps clients from retrying in step
        return min(pause_s * jitter, left_s)


class Deadline:
    """The end of a wait. Without a timeout there is none."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def is_over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    @property
    def left_s(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def limit(self, seconds: float) -> float:
        """Shorten a duration to the time that is left."""
        left_s = self.left_s
        return seconds if left_s is None else min(seconds, left_s)

    def stream_timeout(self) -> httpx2.Timeout:
        shortest_s = 0.001  # zero would mean no timeout
        return httpx2.Timeout(
            max(self.limit(SILENCE_TIMEOUT_S), shortest_s), connect=max(self.limit(CONNECT_TIMEOUT_S), shortest_s)
        )


# Timeouts of the HTTP library start again with every heartbeat of a stream, so they cannot end a wait at its deadline.
# A timer shuts the socket down instead. The reader then gets a TransportError, finds that the deadline is over, and
# stops. Waiting tasks and waiting threads need different timers; that is all these two functions differ in.


@contextmanager
def shut_down_at(response: httpx2.Response, deadline: Deadline) -> Iterator[None]:
    """Shut the connection of a stream down at the deadline, from a timer thread."""
    if (left_s := deadline.left_s) is None:
        yield
        return
    timer = threading.Timer(left_s, _shut_down, (response,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def async_shut_down_at(response: httpx2.Response, deadline: Deadline) -> Iterator[None]:
    """Shut the connection of a stream down at the deadline, from the event loop."""
    if (left_s := deadline.left_s) is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(left_s, _shut_down, response)
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(response: httpx2.Response) -> None:
    try:
        response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    except OSError:  # the other side closed it at the same moment
        log.debug("the stream had already ended")
