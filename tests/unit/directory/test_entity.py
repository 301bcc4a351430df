from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Delete
from magent2.bus.records import NewRecord, Record
from magent2.bus.retry import CONFLICT_TRIES_MAX
from magent2.directory.entity import PAGE, EntityKind, change_entity, create_entity, find_entity, list_entities
from magent2.errors import ConditionFailed, NameTaken, TopicDeleted, UnknownEntity
from tests.support.engines import DISTINCT_ENGINES, new_engines


def _begin(entity: str, record: Record) -> list[str]:
    return [entity, record.payload["word"]]


def _apply(words: list[str], record: Record) -> list[str]:
    return [*words, record.payload["word"]]


WORDS = EntityKind("word", _begin, _apply)


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def write(bus: Engine, entity: str, word: str) -> None:
    bus.call(Append(records=(NewRecord(WORDS.topic(entity), {"word": word}),)))


def test_an_entity_is_the_fold_of_its_records(bus: Engine) -> None:
    assert run_sync(bus, create_entity, WORDS, "a", {"word": "one"}) == ["a", "one"]

    assert run_sync(bus, change_entity, WORDS, "a", lambda words: {"word": str(len(words))}) == ["a", "one", "2"]
    assert run_sync(bus, find_entity, WORDS, "a").state == ["a", "one", "2"]


def test_an_id_is_taken_once(bus: Engine) -> None:
    run_sync(bus, create_entity, WORDS, "a", {"word": "one"})

    with pytest.raises(NameTaken):
        run_sync(bus, create_entity, WORDS, "a", {"word": "two"})

    assert run_sync(bus, find_entity, WORDS, "a").state == ["a", "one"]


def test_a_decision_on_an_old_state_is_taken_anew(bus: Engine) -> None:
    run_sync(bus, create_entity, WORDS, "a", {"word": "one"})
    seen: list[int] = []

    def decide(words: list[str]) -> dict[str, Any]:
        if not seen:
            write(bus, "a", "meanwhile")
        seen.append(len(words))
        return {"word": str(len(words))}

    assert run_sync(bus, change_entity, WORDS, "a", decide) == ["a", "one", "meanwhile", "3"]
    assert seen == [2, 3]


def test_a_decision_that_never_gets_through_is_given_up(bus: Engine) -> None:
    run_sync(bus, create_entity, WORDS, "a", {"word": "one"})
    tries: list[int] = []

    def decide(words: list[str]) -> dict[str, Any]:
        tries.append(len(words))
        write(bus, "a", "again")
        return {"word": "late"}

    with pytest.raises(ConditionFailed, match="keeps changing"):
        run_sync(bus, change_entity, WORDS, "a", decide)
    assert len(tries) == CONFLICT_TRIES_MAX


def test_no_change_writes_nothing(bus: Engine) -> None:
    run_sync(bus, create_entity, WORDS, "a", {"word": "one"})

    run_sync(bus, change_entity, WORDS, "a", lambda _: None)

    assert run_sync(bus, find_entity, WORDS, "a").seq == 1


def test_unknown_and_deleted_entities_have_different_errors(bus: Engine) -> None:
    run_sync(bus, create_entity, WORDS, "a", {"word": "one"})
    bus.call(Delete((WORDS.topic("a"),)))

    with pytest.raises(UnknownEntity):
        run_sync(bus, find_entity, WORDS, "b")
    with pytest.raises(TopicDeleted):
        run_sync(bus, find_entity, WORDS, "a")
    with pytest.raises(NameTaken):
        run_sync(bus, create_entity, WORDS, "a", {"word": "two"})


def test_a_long_life_is_folded_whole(bus: Engine) -> None:
    words = [NewRecord(WORDS.topic("a"), {"word": str(number)}) for number in range(PAGE + 7)]
    bus.call(Append(records=tuple(words)))

    found = run_sync(bus, find_entity, WORDS, "a")

    assert (len(found.state), found.seq) == (PAGE + 8, PAGE + 7)


def test_a_list_has_every_entity_of_the_kind_and_no_other(bus: Engine) -> None:
    for name in ("c", "a", "b"):
        run_sync(bus, create_entity, WORDS, name, {"word": "x"})
    run_sync(bus, create_entity, EntityKind("word2", _begin, _apply), "d", {"word": "x"})

    assert [words[0] for words in run_sync(bus, list_entities, WORDS)] == ["a", "b", "c"]
