"""Opens the bus. The URL comes from `--bus`, else `MAGENT2_BUS_URL`, else `REDIS_URL`, else the SQLite default."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlunsplit

from magent2.bus.interface import Engine
from magent2.bus.urls import split_bus_url
from magent2.errors import SettingsError
from magent2.private_files import narrow_folder
from magent2.settings import Settings
from magent2.token import FILE_NAME

DEFAULT_FILE = "magent2.db"
DATA_NAMES = (DEFAULT_FILE, FILE_NAME, f".{FILE_NAME}.", "files", "supervisor-")  # how all names in a data folder begin
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
POSTGRES_SCHEMES = ("postgres", "postgresql")
SECRET_OPTIONS = frozenset({"password", "sslpassword", "sentinel_password"})  # of the query
URLS = (
    "memory://, sqlite:///path/to/file.db, redis://host:6379/0, redis+sentinel://host1:26379,host2:26379/name/0"
    " or postgresql://user@host/database"
)


def connect(url: str | None = None, settings: Settings | None = None) -> Engine:
    """Open the bus at the URL, or at the URL in the environment, or the SQLite file in the user's data folder.

    A SQLite file is created if it does not exist. A server is not contacted before the first operation.
    """
    chosen = settings or Settings.read()
    where = (url or chosen.bus_url or default_url(chosen)).strip()
    scheme, separator, _ = where.partition("://")
    if not separator:
        # Error messages end up in logs, so this one does not repeat a URL that may contain a password.
        shown = "that" if "@" in where else repr(where[:80])
        raise SettingsError(f"{shown} is not a bus URL; use {URLS}")
    if scheme == "memory":
        return _memory(where, chosen)
    if scheme == "sqlite":
        return _sqlite(where, chosen)
    if scheme in REDIS_SCHEMES:
        return _redis(where, chosen)
    if scheme in POSTGRES_SCHEMES:
        return _postgres(where, chosen)
    raise SettingsError(f"there is no bus for {scheme[:40]!r}://; use {URLS}")


def default_url(settings: Settings) -> str:
    return f"sqlite:///{settings.data_dir / DEFAULT_FILE}"


def hide_password(url: str) -> str:
    """The URL with its passwords replaced, for logs and messages."""
    try:
        parts = split_bus_url(url)
    except ValueError:
        return "an invalid URL"
    options = parse_qsl(parts.query, keep_blank_values=True)
    if any(name in SECRET_OPTIONS for name, _ in options):
        shown = [(name, "***" if name in SECRET_OPTIONS else value) for name, value in options]
        parts = parts._replace(query=urlencode(shown, safe="*/:"))
        url = urlunsplit(parts)
    if parts.password is None:
        return url
    _, _, host = parts.netloc.rpartition("@")
    user = f"{parts.username}:***@" if parts.username else ":***@"
    return urlunsplit(parts._replace(netloc=user + host))


def _memory(url: str, settings: Settings) -> Engine:
    from magent2.bus.memory import MemoryBus

    if url != "memory://":
        raise SettingsError(f"memory:// takes nothing after it, not {url[9:49]!r}")
    return MemoryBus(payload_max_bytes=settings.payload_max_bytes)


def _sqlite(url: str, settings: Settings) -> Engine:
    from magent2.bus.sqlite import SqliteBus

    if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
        raise SettingsError(
            "a SQLite bus is named by its file: sqlite:///relative/path.db,"
            " or sqlite:////absolute/path.db with four slashes"
        )
    path = Path(unquote(url[len("sqlite:///") :])).expanduser()
    if path == settings.data_dir / DEFAULT_FILE:
        narrow_folder(settings.data_dir, DATA_NAMES)
    return SqliteBus(path, payload_max_bytes=settings.payload_max_bytes)


def _redis(url: str, settings: Settings) -> Engine:
    from magent2.bus.redis_adapter import RedisBus

    address, prefix = split_prefix(url)
    if prefix is None:
        return RedisBus(address, payload_max_bytes=settings.payload_max_bytes)
    return RedisBus(address, prefix=prefix, payload_max_bytes=settings.payload_max_bytes)


def _postgres(url: str, settings: Settings) -> Engine:
    try:
        from magent2.bus.postgres import PostgresBus
    except ImportError as error:
        if "psycopg" not in str(error):  # also its own error if it finds no libpq
            raise
        raise SettingsError(
            "a PostgreSQL bus needs the package psycopg with libpq: install magent2-runtime[postgres], for example with"
            f" pip install 'magent2-runtime[postgres]' ({' '.join(str(error).split())})"
        ) from error
    address, prefix = split_prefix(url)
    return PostgresBus(address, prefix=prefix, payload_max_bytes=settings.payload_max_bytes)


def split_prefix(url: str) -> tuple[str, str | None]:
    """`redis://host/0?prefix=acme` → the URL without it, and `acme`: several logs can share one server."""
    try:
        parts = split_bus_url(url)
    except ValueError:  # its text may quote a part of the password
        raise SettingsError(f"that is not a bus URL, because of its brackets or its port; use {URLS}") from None
    options = parse_qsl(parts.query, keep_blank_values=True)
    prefix = next((value for name, value in options if name == "prefix"), None)
    # `quote`: libpq does not read a plus sign as a space.
    rest = urlencode([(name, value) for name, value in options if name != "prefix"], quote_via=quote)
    return (url if prefix is None else urlunsplit(parts._replace(query=rest))), prefix
