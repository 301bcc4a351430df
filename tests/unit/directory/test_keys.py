from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.directory.keys import (
    SECRET_CHARS,
    NewApiKey,
    create_key,
    find_token,
    list_keys,
    register_token,
    replace_token,
    revoke_key,
    split_credential,
    split_key,
    token_key_id,
)
from magent2.errors import AddressError, InvalidInput, UnknownEntity
from magent2.models.principal import Principal


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


def secret_of(made: NewApiKey) -> str:
    """The secret, which may contain the `_` that separates the parts of a key, also at its end."""
    parts = split_key(made.text)
    assert parts is not None
    return parts[1]


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
    assert secret_of(made) not in orjson.dumps(record.payload).decode()
    assert made.text not in repr(made)
    assert made.key.digest not in repr(made)


def test_a_revoked_key_opens_nothing_and_stays_on_the_list(bus: MemoryBus) -> None:
    made = run_sync(bus, create_key, ["user:ann"], "laptop")
    other = run_sync(bus, create_key, ["admin"])

    revoked = run_sync(bus, revoke_key, made.key.id)
    again = run_sync(bus, revoke_key, made.key.id)

    assert revoked == again
    assert made.key.opens(secret_of(made))
    assert not revoked.opens(secret_of(made))
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


TOKEN, OTHER = "a-token-of-a-gateway", "another-token-of-it"


def test_a_registered_token_is_an_admin_key_and_only_its_hash_is_on_the_log(bus: MemoryBus) -> None:
    key = run_sync(bus, register_token, TOKEN, "token file of a test")

    assert split_credential(TOKEN) == (key.id, TOKEN)
    assert key.opens(TOKEN)
    assert key.principal.admin
    (record,) = bus.read(f"entity:key:{key.id}")
    assert TOKEN not in orjson.dumps(record.payload).decode()
    assert not key.digest.startswith(key.id)


def test_registering_a_token_again_writes_nothing_and_does_not_undo_a_revocation(bus: MemoryBus) -> None:
    key = run_sync(bus, register_token, TOKEN, "")
    run_sync(bus, register_token, TOKEN, "")
    run_sync(bus, revoke_key, key.id)

    again = run_sync(bus, register_token, TOKEN, "")

    assert again.revoked_ms is not None
    assert len(bus.read(f"entity:key:{key.id}")) == 2


def test_a_replaced_token_is_revoked(bus: MemoryBus) -> None:
    run_sync(bus, replace_token, None, TOKEN, "")
    run_sync(bus, replace_token, TOKEN, OTHER, "")
    run_sync(bus, replace_token, OTHER, OTHER, "")

    old, new = run_sync(bus, find_token, TOKEN), run_sync(bus, find_token, OTHER)
    assert old is not None
    assert new is not None
    assert (old.opens(TOKEN), new.opens(OTHER)) == (False, True)


@pytest.mark.parametrize("text", ["", "short", "é" * 20, "has a space in it", "x" * 513])
def test_a_text_that_is_no_token_names_no_key(text: str) -> None:
    assert split_credential(text) is None


def test_the_text_of_a_key_names_that_key(bus: MemoryBus) -> None:
    made = run_sync(bus, create_key, ["admin"])

    assert split_credential(made.text) == split_key(made.text)
    assert token_key_id(made.text) != made.key.id
