"""Settings from environment variables. A process reads them once at start and passes them on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from magent2.errors import SettingsError

if TYPE_CHECKING:
    import ssl

PAYLOAD_MAX_BYTES = 1 << 20
PAYLOAD_CAP_MIN_BYTES, PAYLOAD_CAP_MAX_BYTES = 1 << 10, 64 << 20
HOST, PORT = "127.0.0.1", 8700
PORT_MAX = 65_535
LIMIT_PREFIX = "MAGENT2_LIMIT_"
RETENTION_PREFIX = "MAGENT2_RETENTION_"
RETRY_PREFIX = "MAGENT2_RETRY_"
WEBHOOK_VARIABLES = "MAGENT2_WEBHOOK_"
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

# Variables that OpenTelemetry defines
OTLP_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
OTLP_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TRACE_CONTENT_ON = ("true", "span_only", "span_and_event")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a process. The repr hides the token, and URLs because they may hold a password.

    - `url`: where a client reaches the gateway. `host` and `port`: where a gateway listens.
    - `metrics`: where a worker serves its metrics.
    - `traces`: the exporter of spans, `None` for none. OpenTelemetry reads its other variables itself.
    - `limits`, `retention`, `retry`: unparsed values by the names that these tables of an agents file use.
    - `webhook`: unparsed values of the webhook that the environment describes, by the names of its keys.
    """

    bus_url: str | None
    data_dir: Path
    payload_max_bytes: int = PAYLOAD_MAX_BYTES
    host: str = HOST
    port: int = PORT
    token: str | None = None
    url: str | None = None
    log_format: str = "text"
    log_level: str = "warning"
    metrics: str | None = None
    traces: str | None = None
    trace_protocol: str | None = None
    trace_content: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)
    retention: Mapping[str, str] = field(default_factory=dict)
    retry: Mapping[str, str] = field(default_factory=dict)
    webhook: Mapping[str, str] = field(default_factory=dict)
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    files: Path | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables of `environ`, or of the process for None. A blank variable counts as not set.

        Raises `SettingsError` that names the first variable with an invalid value.
        """
        variables = os.environ if environ is None else environ
        folder = variables.get("MAGENT2_DATA_DIR", "").strip()
        return cls(
            bus_url=_first(variables, "MAGENT2_BUS_URL", "REDIS_URL"),
            data_dir=Path(folder).expanduser() if folder else default_data_dir(),
            payload_max_bytes=_payload_cap(variables.get("MAGENT2_PAYLOAD_MAX_BYTES", "").strip()),
            host=_first(variables, "MAGENT2_HOST") or HOST,
            port=_port(variables.get("MAGENT2_PORT", "").strip()),
            token=_first(variables, "MAGENT2_TOKEN"),
            url=_first(variables, "MAGENT2_URL"),
            log_format=_one_of(variables, "MAGENT2_LOG_FORMAT", LOG_FORMATS, "text"),
            log_level=_one_of(variables, "MAGENT2_LOG_LEVEL", LOG_LEVELS, "warning"),
            metrics=_first(variables, "MAGENT2_METRICS"),
            traces=_traces(variables),
            trace_protocol=_first(variables, *OTLP_PROTOCOLS),
            trace_content=(_first(variables, TRACE_CONTENT) or "").lower() in TRACE_CONTENT_ON,
            limits=_with_prefix(variables, LIMIT_PREFIX),
            retention=_with_prefix(variables, RETENTION_PREFIX),
            retry=_with_prefix(variables, RETRY_PREFIX),
            webhook=_with_prefix(variables, WEBHOOK_VARIABLES),
            root_path=variables.get("MAGENT2_ROOT_PATH", "").strip(),
            trusted_proxies=_list(variables, "MAGENT2_TRUSTED_PROXIES"),
            allowed_hosts=_list(variables, "MAGENT2_ALLOWED_HOSTS"),
            files=None if (files := _first(variables, "MAGENT2_FILES_DIR")) is None else Path(files).expanduser(),
        )

    def __repr__(self) -> str:
        hidden = {"bus_url": self.bus_url, "token": self.token, "webhook": self.webhook}
        shown = (
            f"{one.name}=<{'set' if hidden[one.name] else 'not set'}>"
            if one.name in hidden
            else f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
        )
        return f"Settings({', '.join(shown)})"

    @property
    def files_dir(self) -> Path:
        """The folder that holds one folder per agent, from which the agent may send files."""
        return self.files or self.data_dir / "files"

    @property
    def gateway_url(self) -> str:
        """The gateway's URL: `url` if it is set, else this machine and `port`."""
        return self.url or f"http://{HOST}:{self.port}"


@lru_cache(maxsize=256)  # a gateway calls it for every request
def is_loopback(host: str) -> bool:
    """Whether a host name or IP address always refers to this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:  # not an IP address: the name of another machine
        return False


def tls_verification(variables: Mapping[str, str] | None = None) -> ssl.SSLContext | bool:
    """Return how an HTTP client verifies certificates: by SSL_CERT_FILE and SSL_CERT_DIR, else `True` for the system.

    These are the variables of OpenSSL, so connections to Redis and to model providers follow them too. Variables of
    single libraries, such as REQUESTS_CA_BUNDLE, are not read. Raises `SettingsError` for a path that cannot be used.
    """
    import ssl  # only for https

    environ = os.environ if variables is None else variables
    file, folder = _first(environ, "SSL_CERT_FILE"), _first(environ, "SSL_CERT_DIR")
    if file is None and folder is None:
        return True
    if folder is not None and not Path(folder).is_dir():  # OpenSSL would ignore it
        raise SettingsError(f"SSL_CERT_DIR names {folder}, which is not a folder; correct or unset it")
    try:
        return ssl.create_default_context(cafile=file, capath=folder)
    except OSError as error:  # includes ssl.SSLError: a file without a certificate
        reason = error.strerror or "it has no certificate"
        raise SettingsError(
            f"SSL_CERT_FILE names {file}, which cannot be used ({reason}); correct or unset it"
        ) from None


def default_data_dir() -> Path:
    from platformdirs import user_data_path  # slow to import; needed only without MAGENT2_DATA_DIR

    return user_data_path("magent2", appauthor=False)


def _first(variables: Mapping[str, str], *names: str) -> str | None:
    """Return the value of the first variable that is set and not blank."""
    return next((value for name in names if (value := variables.get(name, "").strip())), None)


def _traces(variables: Mapping[str, str]) -> str | None:
    """Return the exporter that OTEL_TRACES_EXPORTER names, else `otlp` if an OTLP endpoint is set."""
    named = (_first(variables, "OTEL_TRACES_EXPORTER") or "").lower()
    disabled = (_first(variables, "OTEL_SDK_DISABLED") or "").lower() == "true"
    if disabled or named == "none":
        return None
    return named or ("otlp" if _first(variables, *OTLP_ENDPOINTS) else None)


def _with_prefix(variables: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the variables whose names have this prefix, by the rest of their names in lower case."""
    given = {name: value.strip() for name, value in variables.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix).lower(): value for name, value in given.items() if value}


def _list(variables: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Split a list whose values are separated by commas or spaces."""
    return tuple(variables.get(name, "").replace(",", " ").split())


def _payload_cap(text: str) -> int:
    if not text:
        return PAYLOAD_MAX_BYTES
    if not text.isdecimal() or not PAYLOAD_CAP_MIN_BYTES <= int(text) <= PAYLOAD_CAP_MAX_BYTES:
        raise SettingsError(
            f"MAGENT2_PAYLOAD_MAX_BYTES must be a number of bytes from {PAYLOAD_CAP_MIN_BYTES}"
            f" to {PAYLOAD_CAP_MAX_BYTES}, not {text[:40]!r}"
        )
    return int(text)


def _port(text: str) -> int:
    if not text:
        return PORT
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise SettingsError(f"MAGENT2_PORT must be a number from 0 (any free port) to {PORT_MAX}, not {text[:40]!r}")
    return int(text)


def _one_of(variables: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = variables.get(name, "").strip().lower()
    if text and text not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, not {text[:40]!r}")
    return text or default
