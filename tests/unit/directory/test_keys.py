from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.directory.keys import SECRET_CHARS, create_key, list_keys, revoke_key, split_key
from magent2.errors import AddressError, InvalidInput, UnknownEntity
from magent2.models.principal import Principal


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


def test_a_key_opens_by_its_secret_and_by_no_other(bus: MemoryBus) -> None:
    made = run_sync(bus, create_key, ["user:ann"], "laptop")

    parts = split_key(made.text)
    assert parts is not None
    assert parts[0] == made.key.id
    assert made.key.opens(parts[1])
    assert not made.key.opens(parts[1][:-1] + ("a" if parts[1][-1] != "a" else "b"))
    assert not made.key.opens("é")


def test_the_log_does_not_know_the_secret(bus: MemoryBus) -> None:
    made = run_sync(bus, create_key, ["user:ann"])

    (record,) = bus.read(f"entity:key:{made.key.id}")
    assert made.text.rpartition("_")[2] not in orjson.dumps(record.payload).decode()
    assert made.text not in repr(made)
    assert made.key.digest not in repr(made)


def test_a_revoked_key_opens_nothing_and_stays_on_the_list(bus: MemoryBus) -> None:
    made = run_sync(bus, create_key, ["user:ann"], "laptop")
    other = run_sync(bus, create_key, ["admin"])

    revoked = run_sync(bus, revoke_key, made.key.id)
    again = run_sync(bus, revoke_key, made.key.id)

    assert revoked == again
    assert not revoked.opens(made.text.rpartition("_")[2])
    listed = {key.id: key for key in run_sync(bus, list_keys)}
    assert (listed[made.key.id].label, listed[made.key.id].revoked_at) == ("laptop", revoked.revoked_at)
    assert listed[other.key.id].revoked_at is None


def test_an_unknown_key_cannot_be_revoked(bus: MemoryBus) -> None:
    with pytest.raises(UnknownEntity):
        run_sync(bus, revoke_key, "000000000000")


@pytest.mark.parametrize(
    ("scopes", "principal"),
    [
        (["user:ann"], Principal("user:ann")),
        (["admin"], Principal("user:local", admin=True)),
        (["admin", "user:ann"], Principal("user:ann", admin=True)),
    ],
)
def test_scopes_say_who_the_key_stands_for(bus: MemoryBus, scopes: list[str], principal: Principal) -> None:
    assert run_sync(bus, create_key, scopes).key.principal == principal


@pytest.mark.parametrize(
    "scopes", [[], ["root"], ["user:"], ["user:a", "user:b"], ["agent:Ada"], ["Admin"], ["user:local"]]
)
def test_a_scope_that_means_nothing_is_refused(bus: MemoryBus, scopes: list[str]) -> None:
    with pytest.raises(InvalidInput):
        run_sync(bus, create_key, scopes)


def test_a_user_that_cannot_be_a_name_is_refused(bus: MemoryBus) -> None:
    with pytest.raises(AddressError):
        run_sync(bus, create_key, ["user:ann "])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mk",
        "mk_",
        "mk_0123456789ab_",
        "mk_0123456789ab_short",
        "xx_0123456789ab_" + "s" * SECRET_CHARS,
        "mk_0123456789AB_" + "s" * SECRET_CHARS,
        "mk_0123_" + "s" * SECRET_CHARS,
    ],
)
def test_what_cannot_be_a_key_is_seen_without_asking_the_log(text: str) -> None:
    assert split_key(text) is None


def test_a_secret_with_a_line_in_it_is_kept_whole() -> None:
    secret = "_" * SECRET_CHARS

    assert split_key(f"mk_0123456789ab_{secret}") == ("0123456789ab", secret)
