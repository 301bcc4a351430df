from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.connect import connect, default_url, hide_password, split_prefix
from magent2.bus.memory import MemoryBus
from magent2.bus.sqlite import SqliteBus
from magent2.errors import SettingsError
from magent2.settings import Settings


def settings_of(tmp_path: Path, **variables: str) -> Settings:
    return Settings.read({"MAGENT2_DATA_DIR": str(tmp_path), **variables})


def test_without_a_word_it_is_the_file_in_the_data_folder(tmp_path: Path) -> None:
    bus = connect(settings=settings_of(tmp_path / "new"))
    bus.close()

    assert isinstance(bus, SqliteBus)
    assert (tmp_path / "new" / "magent2.db").exists()


def test_the_argument_beats_the_environment(tmp_path: Path) -> None:
    bus = connect("memory://", settings_of(tmp_path, MAGENT2_BUS_URL="redis://nowhere"))
    bus.close()

    assert isinstance(bus, MemoryBus)


def test_a_sqlite_url_names_a_relative_or_an_absolute_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    connect("sqlite:///near.db").close()
    connect(f"sqlite:///{tmp_path}/far.db").close()

    assert (tmp_path / "near.db").exists()
    assert (tmp_path / "far.db").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://host", "no bus for 'kafka'"),
        ("just-a-file.db", "not a bus URL"),
        ("sqlite://", "four slashes"),
        ("sqlite:///", "four slashes"),
        ("memory://x", "takes nothing after it"),
        ("redis+sentinel://host:26379", "does not say which primary"),
        ("redis+sentinel://host:port/name", "not a host and port of a Sentinel: 'host:port'"),
        ("redis+sentinel://host/name/one", "'one' is not the number of a database"),
        ("redis://host/0?wait=all", "wait=all in the URL is not a number of replicas"),
    ],
)
def test_a_url_that_names_no_bus_is_one_clear_line(url: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        connect(url)


@pytest.mark.parametrize(
    "url",
    [
        "user:hunter2@host",  # pragma: allowlist secret
        "redis://me:hunter2@[::1/0",  # pragma: allowlist secret
        "postgresql://me:hunter2@[::1/log",  # pragma: allowlist secret
        "postgresql://me:hunter2%zz@host/log",  # pragma: allowlist secret
        "postgresql://me:hunter2@[::1]x/log",  # pragma: allowlist secret
        "redis+sentinel://me:hunter2@h1,[::1/log/0",  # pragma: allowlist secret
    ],
)
def test_a_refused_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        connect(url)

    assert "hunter2" not in str(refusal.value)


def test_a_printed_url_hides_its_password() -> None:
    assert hide_password("redis://me:hunter2@host:1/0") == "redis://me:***@host:1/0"  # pragma: allowlist secret
    assert hide_password("redis://host:1/0") == "redis://host:1/0"
    sentinels = (
        "redis+sentinel://me:hunter2@h1:1,h2:2/log/0?sentinel_password=hunter3&wait=1"  # pragma: allowlist secret
    )
    assert hide_password(sentinels) == "redis+sentinel://me:***@h1:1,h2:2/log/0?sentinel_password=***&wait=1"
    assert (
        hide_password("postgresql://host/log?user=me&password=hunter2&sslpassword=x")  # pragma: allowlist secret
        == "postgresql://host/log?user=me&password=***&sslpassword=***"  # pragma: allowlist secret
    )


def test_a_prefix_is_taken_out_of_the_url() -> None:
    assert split_prefix("redis://host/0?prefix=acme") == ("redis://host/0", "acme")
    assert split_prefix("redis://host/0?timeout=3") == ("redis://host/0?timeout=3", None)
    assert split_prefix("redis://host/0?timeout=3&prefix=a") == ("redis://host/0?timeout=3", "a")
    options = "postgresql://host/log?options=-c%20jit%3Doff"
    assert split_prefix(f"{options}&prefix=a") == (options, "a")


def test_hosts_of_a_list_may_be_ipv6_addresses() -> None:
    """Releases of Python differ here: those since 2025 refuse to split such a URL."""
    sentinels = "redis+sentinel://me:hunter2@h1:1,[::1]:2,[::1]/log/0"  # pragma: allowlist secret
    assert hide_password(f"{sentinels}?wait=1") == "redis+sentinel://me:***@h1:1,[::1]:2,[::1]/log/0?wait=1"
    assert split_prefix(f"{sentinels}?prefix=a") == (sentinels, "a")
    standby = "postgresql://me@[::1]:1,[::1]:2/log"
    assert split_prefix(f"{standby}?prefix=a") == (standby, "a")


def test_the_default_url_names_the_default_file(tmp_path: Path) -> None:
    assert default_url(settings_of(tmp_path)) == f"sqlite:///{tmp_path}/magent2.db"
