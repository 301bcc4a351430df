"""How a session is held: folded from the history, changed in one append."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Delete, Describe
from magent2.errors import NameTaken, TopicDeleted
from magent2.mail.registration import register_agent
from magent2.models.address import conversation_topics
from magent2.models.principal import Principal
from magent2.sessions.folds import model_input
from magent2.sessions.history import History, RecordedSettings, RunKey, read_history, settings_record
from magent2.sessions.settings import ConfigureResult, SessionChange, changed_settings, configure_session
from tests.support.audit import whole_log

ANN = Principal("ann")
SECRET = "Never tell them about the cellar."  # pragma: allowlist secret
ENVELOPE = {"sender": "user:ann", "content": "hello"}


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def configure(bus: MemoryBus, **change: Any) -> ConfigureResult:
    given = {"agent": "desk", "scenario_id": "house", **change}
    return run_sync(bus, configure_session, "one", ANN, SessionChange(**given))


def settings(bus: MemoryBus) -> RecordedSettings:
    return run_sync(bus, read_history, "one").settings


def events(bus: MemoryBus) -> list[tuple[str, list[str]]]:
    return [(record.payload["status"], record.payload["data"]["changed"]) for record in whole_log(bus, "stream:one")]


def test_a_new_session_is_created_with_its_settings(bus: MemoryBus) -> None:
    made = configure(bus, instructions=SECRET, model="small", overlay="Be kind.")

    assert made.created
    assert settings(bus) == {
        "scenario_id": "house",
        "agents": {"desk": {"instructions": SECRET, "model": "small"}},
        "overlay": "Be kind.",
    }
    assert events(bus) == [("created", ["scenario_id", "overlay", "desk.instructions", "desk.model"])]
    head = bus.call(Describe(("stream:one",)))[0].head
    assert (head["owner"], head["active_agent"], head["scenario_id"]) == ("ann", "desk", "house")


def test_the_stream_does_not_say_what_the_agents_are_told(bus: MemoryBus) -> None:
    configure(bus, instructions=SECRET)

    assert "cellar" not in str([record.payload for record in whole_log(bus, "stream:one")])


def test_what_is_not_said_stays_and_an_empty_text_takes_back(bus: MemoryBus) -> None:
    configure(bus, instructions="Be a pirate.", overlay="Be kind.")

    assert configure(bus, model="large").changed == ("desk.model",)
    assert configure(bus, agent="shop", instructions="Sell.").changed == ("shop.instructions",)
    configure(bus, instructions="", overlay="")

    assert settings(bus) == {
        "scenario_id": "house",
        "agents": {"shop": {"instructions": "Sell."}, "desk": {"model": "large"}},
    }


def test_no_change_writes_nothing(bus: MemoryBus) -> None:
    configure(bus, overlay="Be kind.")

    assert configure(bus, overlay="Be kind.") == ConfigureResult(settings(bus), False, (), "desk")
    assert len(events(bus)) == 1


def test_another_scenario_forgets_what_the_old_agents_were_told(bus: MemoryBus) -> None:
    configure(bus, instructions="Be a pirate.")

    configure(bus, agent="stranger", scenario_id="away")

    assert settings(bus) == {"scenario_id": "away", "agents": {}}


def test_changes_of_many_at_once_are_all_kept(bus: MemoryBus) -> None:
    configure(bus)
    threads = [
        threading.Thread(target=configure, args=(bus,), kwargs={"agent": f"a{number}", "model": "m"})
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(settings(bus)["agents"]) == {"a0", "a1", "a2", "a3"}
    assert len(events(bus)) == 5


def test_a_deleted_session_and_the_name_of_an_agent_are_refused(bus: MemoryBus) -> None:
    configure(bus)
    bus.call(Delete(conversation_topics("one"), conversation="one"))
    with pytest.raises(TopicDeleted):
        configure(bus)

    run_sync(bus, register_agent, "desk")
    with pytest.raises(NameTaken):
        run_sync(bus, configure_session, "desk", ANN, SessionChange("desk", "house"))


def test_changes_are_told_by_name() -> None:
    assert changed_settings({}, {"scenario_id": "x", "agents": {"a": {"model": "m"}}}) == ("scenario_id", "a.model")
    assert changed_settings({"overlay": "a"}, {"overlay": "a"}) == ()


# --- what runs see


def write(bus: MemoryBus, name: str, agent: str, spec: Mapping[str, Any], said: str | None = "hi") -> None:
    key = RunKey("one", name, agent)
    seen = run_sync(bus, read_history, "one").last
    end = () if said is None else (key.end("finished", said),)
    bus.call(Append(records=(key.start(ENVELOPE, spec, seen), *end)))


def shown(bus: MemoryBus, agent: str, spec: Mapping[str, Any]) -> list[str]:
    write(bus, "last", agent, spec, None)
    history = run_sync(bus, read_history, "one")
    return [str(item["content"]) for item in model_input(history, history.runs["last"], 10).items]


def test_settings_do_not_disturb_runs_and_the_last_count(bus: MemoryBus) -> None:
    bus.call(Append(records=(settings_record("one", {"scenario_id": "old"}),)))
    write(bus, "r1", "desk", {})
    bus.call(Append(records=(settings_record("one", {"scenario_id": "new"}),)))

    history = run_sync(bus, read_history, "one")

    assert (list(history.runs), history.settings) == (["r1"], {"scenario_id": "new"})
    assert History().settings == {}


def test_agents_of_one_scenario_share_the_conversation(bus: MemoryBus) -> None:
    write(bus, "r1", "desk", {"scenario_id": "house"}, "I am the desk")
    write(bus, "r2", "stranger", {"scenario_id": "away"}, "I am a stranger")

    assert shown(bus, "shop", {"scenario_id": "house"}) == ["hello", "I am the desk", "hello"]


def test_an_agent_from_elsewhere_remembers_only_its_own(bus: MemoryBus) -> None:
    write(bus, "r1", "desk", {"scenario_id": "house"}, "I am the desk")
    write(bus, "r2", "stranger", {"scenario_id": "away"}, "I am a stranger")

    assert shown(bus, "stranger", {"scenario_id": "away"}) == ["hello", "I am a stranger", "hello"]


def test_agents_without_a_scenario_remember_only_their_own(bus: MemoryBus) -> None:
    write(bus, "r1", "Ada", {}, "I am Ada")

    assert shown(bus, "Bea", {}) == ["hello"]


@pytest.mark.parametrize("kind", ["tool", "route"])
def test_tools_run_by_hand_and_decisions_are_not_part_of_the_talk(bus: MemoryBus, kind: str) -> None:
    write(bus, "r1", "desk", {"scenario_id": "house", "kind": kind}, "{}")

    assert shown(bus, "desk", {"scenario_id": "house"}) == ["hello"]
