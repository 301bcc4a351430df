"""Where a steer goes, when it is refused, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Operation, SetHead
from magent2.bus.records import NewRecord
from magent2.errors import InvalidInput, NoActiveRun, NotYours, QueueFull, TextTooLong
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import COPIES, RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING, STEER
from magent2.sessions.history import EndStatus, History, RunKey, SeenSteer
from magent2.sessions.message_outcome import find_message_progress, receipts_of
from magent2.sessions.steering import STEER_MAX_CHARS, STEERS_WAITING_MAX, active_runs
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.journaled_runs import message_contents
from tests.support.steerable_run import steer
from tests.support.worker_fixture import send


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def begin(bus: MemoryBus, agent: str, mail: str, spec: dict[str, Any] | None = None) -> RunKey:
    """A run of this agent is under way, as its worker has written it."""
    key = RunKey("one", f"run-{agent}-{mail}", agent)
    start = key.start({"id": mail, "sender": "user:ann", "content": "go"}, spec or {}, 0)
    write(bus, start, status=RUNNING, agent=agent, mail=mail)
    return key


def end(bus: MemoryBus, key: RunKey, mail: str, status: EndStatus = "finished") -> None:
    write(bus, key.end(status), status=status, agent=key.agent, mail=mail)


def write(bus: MemoryBus, *records: NewRecord, status: str, agent: str, mail: str) -> None:
    fields = {RUN_STATUS: status, RUN_AGENT: agent, RUN_ENVELOPE: mail}
    bus.call(Append(records=records, heads=(SetHead("stream:one", fields),)))


def see(bus: MemoryBus, key: RunKey, turn: int, *ids: str) -> None:
    steers: list[SeenSteer] = [{"id": name, "source": "user:ann", "text": name, "seq": 1} for name in ids]
    bus.call(Append(records=(key.answer(turn, {"output": []}, key.agent, steers),)))


def told(history: MemoryBus) -> History:
    return History().followed_by(whole_log(history, "history:one"))


# --- where to


def test_to_the_conversation_it_goes_to_every_agent_at_work_there(bus: MemoryBus) -> None:
    first = send(bus, "go", recipient="agent:Ada")
    second = send(bus, "go", recipient="agent:Bea")
    begin(bus, "Ada", first)
    begin(bus, "Bea", second)
    ended = begin(bus, "Cy", "m3")
    end(bus, ended, "m3")

    steered = steer(bus, "all of you")

    assert steered.topics == ("chat:one", "chat:Ada", "chat:Bea")
    assert [message_contents(bus, f"chat:{name}")[-1:] for name in ("Ada", "Bea", "Cy")] == [["all of you"]] * 2 + [[]]
    assert whole_log(bus, "chat:Ada")[-1].headers == {STEER: True, COPIES: 2}


def test_an_agents_own_words_do_not_come_back_to_it(bus: MemoryBus) -> None:
    begin(bus, "Ada", send(bus, "go", recipient="agent:Ada"))
    begin(bus, "Bea", send(bus, "go", recipient="agent:Bea"))

    assert steer(bus, "hear me", sender="agent:Ada").topics == ("chat:one", "chat:Bea")


def test_a_steer_without_an_agent_to_see_it_is_refused(bus: MemoryBus) -> None:
    begin(bus, "Ada", send(bus, "go", recipient="agent:Ada"))

    with pytest.raises(NoActiveRun, match="no agent besides the sender is active"):
        steer(bus, "anybody?", sender="agent:Ada")
    with pytest.raises(NoActiveRun, match="no agent besides the sender is active"):
        steer(bus, "anybody?", recipient="chat:two", conversation="two")

    assert message_contents(bus, "chat:one") == ["go"]


def test_a_steer_without_a_run_in_progress_goes_to_the_active_agent(bus: MemoryBus) -> None:
    mail = send(bus, "go", recipient="agent:Ada")
    end(bus, begin(bus, "Ada", mail), mail)

    assert steer(bus, "hello").topics == ("chat:one", "chat:Ada")


def test_after_a_handoff_it_reaches_the_run_under_way(bus: MemoryBus) -> None:
    begin(bus, "Ada", send(bus, "go", recipient="agent:Ada"))
    bus.call(Append(records=(NewRecord("stream:one", {}),), heads=(SetHead("stream:one", {"active_agent": "Bea"}),)))

    assert steer(bus, "hello").topics == ("chat:one", "chat:Ada")


def test_a_tool_that_is_run_by_hand_is_no_run_to_steer(bus: MemoryBus) -> None:
    send(bus, "go", recipient="agent:Ada")
    begin(bus, "Bea", "m2", {"kind": "tool"})

    assert steer(bus, "hello").topics == ("chat:one", "chat:Ada")
    with pytest.raises(NoActiveRun):
        steer(bus, "hello again", require_active=True)


def test_a_run_that_was_begun_again_after_it_had_failed_is_under_way(bus: MemoryBus) -> None:
    key = begin(bus, "Ada", "m1")
    end(bus, key, "m1", "failed")
    assert active_runs(told(bus), {RUN_STATUS: "failed", RUN_AGENT: "Ada", RUN_ENVELOPE: "m1"}) == {}

    assert set(active_runs(told(bus), {RUN_STATUS: RUNNING, RUN_AGENT: "Ada", RUN_ENVELOPE: "m1"})) == {"Ada"}


class EndsMeanwhile(EngineWrapper):
    """A run ends between the look at the log and the append, once."""

    ended = False

    def __init__(self, bus: MemoryBus, key: RunKey, mail: str) -> None:
        super().__init__(bus)
        self._bus, self._key, self._mail = bus, key, mail

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Append) and not self.ended:
            self.ended = True
            end(self._bus, self._key, self._mail)
        return self.inner.call(operation)


def test_a_run_that_ends_meanwhile_is_not_steered_where_one_under_way_was_wanted(bus: MemoryBus) -> None:
    mail = send(bus, "go", recipient="agent:Ada")
    key = begin(bus, "Ada", mail)

    with pytest.raises(NoActiveRun):
        steer(EndsMeanwhile(bus, key, mail), "hurry", require_active=True)

    assert message_contents(bus, "chat:one") == ["go"]


# --- refusals


def test_only_so_many_wait_for_one_run_until_it_has_seen_some(bus: MemoryBus) -> None:
    key = begin(bus, "Ada", send(bus, "go", recipient="agent:Ada"))
    ids = [steer(bus, f"s{n}").envelope_id for n in range(STEERS_WAITING_MAX)]

    with pytest.raises(QueueFull, match=f"the limit is {STEERS_WAITING_MAX}"):
        steer(bus, "one too many")
    see(bus, key, 0, ids[0])

    assert steer(bus, "now there is room").topics[-1] == "chat:Ada"


def test_plain_mail_does_not_count_as_steers_that_wait(bus: MemoryBus) -> None:
    begin(bus, "Ada", send(bus, "go", recipient="agent:Ada"))
    for n in range(STEERS_WAITING_MAX + 1):
        send(bus, f"m{n}", recipient="agent:Ada")

    assert steer(bus, "hello").topics[-1] == "chat:Ada"


@pytest.mark.parametrize(("text", "error"), [("", InvalidInput), ("x" * (STEER_MAX_CHARS + 1), TextTooLong)])
def test_a_text_that_cannot_be_shown_is_refused(bus: MemoryBus, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        steer(bus, text)


def test_another_persons_conversation_cannot_be_steered(bus: MemoryBus) -> None:
    send(bus, "mine", sending=SendOptions(principal="user:ann"))

    with pytest.raises(NotYours):
        steer(bus, "psst", sending=SendOptions(principal="user:bob"), sender="user:bob")


# --- what became of it


def test_the_fate_of_a_message_is_told_step_by_step(bus: MemoryBus) -> None:
    mail = send(bus, "go", recipient="agent:Ada", id="mail")
    key = begin(bus, "Ada", mail)
    name = steer(bus, "hurry").envelope_id

    def status(envelope_id: str) -> str:
        fate = run_sync(bus, find_message_progress, "one", envelope_id)
        assert fate is not None
        return fate.status

    assert (status(mail), status(name)) == ("seen", "accepted")
    see(bus, key, 3, name)
    assert status(name) == "seen"
    end(bus, key, mail)
    assert (status(mail), status(name)) == ("answered", "answered")
    assert run_sync(bus, find_message_progress, "one", "never") is None


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_what_a_run_has_seen_is_dead_when_the_run_came_to_nothing(bus: MemoryBus, status: EndStatus) -> None:
    key = begin(bus, "Ada", "m1")
    see(bus, key, 0, "s1")
    end(bus, key, "m1", status)

    (receipt,) = receipts_of(told(bus).runs.values(), "s1")
    assert (receipt.status, receipt.turn, receipt.reason is None) == ("dead", 0, False)


def test_a_message_to_two_agents_counts_those_that_have_not_seen_it(bus: MemoryBus) -> None:
    ada = begin(bus, "Ada", send(bus, "go", recipient="agent:Ada"))
    begin(bus, "Bea", send(bus, "go", recipient="agent:Bea"))
    name = steer(bus, "both").envelope_id
    see(bus, ada, 0, name)

    fate = run_sync(bus, find_message_progress, "one", name)

    assert fate is not None
    assert (fate.status, fate.waiting, [one.agent for one in fate.receipts]) == ("seen", 1, ["Ada"])
