from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.directory.agents import AgentEntry, find_agent, list_agents, remove_agent, set_agent_role
from magent2.directory.channels import (
    MEMBERS_MAX,
    Channel,
    ChannelMember,
    channel_recipients,
    create_channel,
    decide_join,
    decide_leader,
    decide_leave,
    find_channel,
    join_channel,
    leave_channel,
    new_member,
    parse_channel,
)
from magent2.directory.connectors import (
    Capabilities,
    find_connector,
    list_connector_ids,
    register_connector,
    unregister_connector,
)
from magent2.directory.swarms import (
    Contact,
    Swarm,
    check_may_answer,
    check_may_write,
    contact_change,
    create_swarm,
)
from magent2.directory.users import (
    change_user,
    create_user,
    find_user,
    find_user_by_nametag,
    parse_nametag,
    remove_user,
)
from magent2.errors import AddressError, InvalidInput, NameTaken, NotAContact, NotAMember, UnknownEntity
from magent2.sessions.store import create_session
from tests.support.engines import DISTINCT_ENGINES, new_engines


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


# --- users and nametags


@pytest.mark.parametrize("text", ["@Ann", "ann", " ANN "])
def test_a_nametag_is_one_however_it_is_written(text: str) -> None:
    assert parse_nametag(text) == "ann"


@pytest.mark.parametrize("text", ["", "@", "a", "an n", "ann!", "ännä", "@@ann", "a" * 33, "ann\n", "ann|bob"])
def test_what_is_no_nametag_is_refused(text: str) -> None:
    if text == "ann\n":
        assert parse_nametag(text) == "ann"
        return
    with pytest.raises(InvalidInput):
        parse_nametag(text)


def test_a_nametag_is_one_persons_for_ever(bus: Engine) -> None:
    run_sync(bus, create_user, "ann", "ann")

    with pytest.raises(NameTaken):
        run_sync(bus, create_user, "anna", "ANN")
    with pytest.raises(UnknownEntity):
        run_sync(bus, find_user, "anna")
    run_sync(bus, remove_user, "ann")
    with pytest.raises(NameTaken):
        run_sync(bus, create_user, "anna", "ann")
    with pytest.raises(NameTaken):
        run_sync(bus, create_swarm, "ann", "bob", "Desk")


def test_of_many_who_want_one_nametag_at_once_one_gets_it(bus: Engine) -> None:
    got: list[str] = []
    begin = threading.Barrier(4)

    def want(entity: str) -> None:
        begin.wait()
        try:
            got.append(run_sync(bus, create_user, entity, "star").id)
        except NameTaken:
            return

    threads = [threading.Thread(target=want, args=(f"u{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == 1
    assert run_sync(bus, find_user_by_nametag, "@star").state.id == got[0]


def test_a_user_changes_and_goes(bus: Engine) -> None:
    made = run_sync(bus, create_user, "user:ann", "ann", {"agent": "Ada"})
    assert (made.id, made.principal, made.connector) == ("ann", "user:ann", "web")

    assert run_sync(bus, change_user, "ann", {"agent": "Bo", "target": None}).agent == "Bo"
    assert run_sync(bus, find_user, "ann").state.home == made.home
    with pytest.raises(InvalidInput, match="no color"):
        run_sync(bus, change_user, "ann", {"color": "red"})
    run_sync(bus, remove_user, "ann")
    with pytest.raises(UnknownEntity, match="was removed"):
        run_sync(bus, find_user_by_nametag, "ann")
    with pytest.raises(UnknownEntity, match="was removed"):
        run_sync(bus, change_user, "ann", {"agent": "Cleo"})


# --- agents


def test_agents_have_a_role_and_subs_a_parent(bus: Engine) -> None:
    assert run_sync(bus, find_agent, "Ada") == AgentEntry("Ada", "background", None)
    assert run_sync(bus, set_agent_role, "Sub", "sub", "Ada").parent == "Ada"
    assert run_sync(bus, remove_agent, "Sub").removed
    assert not run_sync(bus, set_agent_role, "Sub", "sub", "Ada").removed
    assert [entry.name for entry in run_sync(bus, list_agents)] == ["Sub"]


@pytest.mark.parametrize(("role", "parent"), [("sub", None), ("foreground", "Ada"), ("king", None), ("sub", "Sub")])
def test_what_an_agent_cannot_be(bus: Engine, role: str, parent: str | None) -> None:
    with pytest.raises(InvalidInput):
        run_sync(bus, set_agent_role, "Sub", role, parent)


def test_an_agent_cannot_be_its_own_ancestor(bus: Engine) -> None:
    run_sync(bus, set_agent_role, "B", "sub", "A")
    run_sync(bus, set_agent_role, "C", "sub", "B")

    with pytest.raises(InvalidInput, match="own ancestor"):
        run_sync(bus, set_agent_role, "A", "sub", "C")


# --- channels

ANN, BOB, CAT = (ChannelMember(name, name, name.title(), f"room-{name}") for name in ("ann", "bob", "cat"))
LAUNCH = Channel("launch", "ann", (ANN, BOB, CAT))


@pytest.mark.parametrize(
    ("speaker", "mentions", "told"),
    [
        (BOB, [], [ANN]),
        (ANN, [], []),
        (BOB, ["@cat"], [ANN, CAT]),
        (BOB, ["cat", "@CAT", "ann"], [ANN, CAT]),
        (ANN, ["@ann", "@bob"], [BOB]),
    ],
)
def test_the_leader_and_the_mentioned_hear_it(
    speaker: ChannelMember, mentions: list[str], told: list[ChannelMember]
) -> None:
    assert list(channel_recipients(LAUNCH, speaker, mentions)) == told


def test_only_members_can_be_mentioned_or_speak() -> None:
    with pytest.raises(InvalidInput, match="its members are: @ann, @bob, @cat"):
        channel_recipients(LAUNCH, ANN, ["@dan"])
    with pytest.raises(NotAMember):
        LAUNCH.speaker("ann", "Other")
    with pytest.raises(NotAMember):
        LAUNCH.speaker("dan", "Ann")
    with pytest.raises(UnknownEntity):
        Channel("launch", "ann", (ANN,), removed=True).speaker("ann", "Ann")


def test_joining_leaving_and_leading() -> None:
    assert decide_join(LAUNCH, BOB) is None
    with pytest.raises(InvalidInput, match="another member"):
        decide_join(LAUNCH, ChannelMember("bob", "dan", "Dan", "r"))
    with pytest.raises(InvalidInput, match="another name"):
        decide_join(LAUNCH, ChannelMember("bobby", "bob", "Bob", "r"))
    crowd = Channel("c", "m0", tuple(ChannelMember(f"m{n}", f"m{n}", "A", "r") for n in range(MEMBERS_MAX)))
    with pytest.raises(InvalidInput, match="at most"):
        decide_join(crowd, ANN)
    with pytest.raises(InvalidInput, match="first"):
        decide_leave(LAUNCH, "ann")
    assert decide_leave(LAUNCH, "dan") is None
    assert decide_leader(LAUNCH, "ann") is None
    with pytest.raises(InvalidInput):
        decide_leader(LAUNCH, "dan")


@pytest.mark.parametrize("text", ["", "#", "two words", "a/b", "-a", "x" * 65, "ünter"])
def test_what_is_no_channel_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_channel(text)


def test_a_channel_is_the_fold_of_its_log(bus: Engine) -> None:
    run_sync(bus, create_channel, "#Launch", new_member("ann", "ann", "Ada"))
    run_sync(bus, join_channel, "launch", new_member("bob", "bob", "Bo"))
    run_sync(bus, leave_channel, "launch", "bob")

    channel = run_sync(bus, find_channel, "launch").state
    assert (channel.leader, [member.username for member in channel.members]) == ("ann", ["ann"])
    with pytest.raises(UnknownEntity, match="channels add"):
        run_sync(bus, join_channel, "nowhere", new_member("bob", "bob", "Bo"))


# --- swarms

OPEN = Swarm("desk", "bob", "Desk", "k", open=True)
CLOSED = Swarm("desk", "bob", "Desk", "k", guests=frozenset({"cat"}))
KNOWN = Contact("desk|ann", "Ada", "one")
BLOCKED = Contact("desk|ann", "Ada", "one", blocked=True)


@pytest.mark.parametrize(
    ("swarm", "user", "contact", "error"),
    [
        (OPEN, "ann", None, None),
        (OPEN, "ann", KNOWN, None),
        (OPEN, "ann", BLOCKED, NotAContact),
        (CLOSED, "ann", None, NotAContact),
        (CLOSED, "ann", KNOWN, NotAContact),
        (CLOSED, "cat", None, None),
        (CLOSED, "bob", None, None),
        (Swarm("desk", "bob", "Desk", "k", open=True, removed=True), "bob", None, UnknownEntity),
    ],
)
def test_who_may_write_to_a_swarm(
    swarm: Swarm, user: str, contact: Contact | None, error: type[Exception] | None
) -> None:
    if error is None:
        check_may_write(swarm, user, contact)
    else:
        with pytest.raises(error):
            check_may_write(swarm, user, contact)


def test_a_swarm_answers_only_its_contacts() -> None:
    assert check_may_answer(CLOSED, "ann", KNOWN) is KNOWN
    for contact in (None, BLOCKED):
        with pytest.raises(NotAContact):
            check_may_answer(OPEN, "ann", contact)


def test_a_contact_is_where_they_wrote_from_last() -> None:
    assert contact_change(KNOWN, "Ada", "one") is None
    assert contact_change(None, "Ada", "one") == {"event": "wrote", "agent": "Ada", "conversation": "one"}
    assert contact_change(KNOWN, "Ada", "two") == {"event": "wrote", "agent": "Ada", "conversation": "two"}


def test_the_rooms_of_a_swarm_cannot_be_guessed() -> None:
    other = Swarm("desk", "bob", "Desk", "another key")

    assert len({OPEN.room("ann"), OPEN.room("cat"), other.room("ann")}) == 3


# --- connectors


def test_connectors_are_set_up_once_and_taken_away(bus: Engine) -> None:
    made = run_sync(bus, register_connector, "hook", "console", Capabilities())

    assert run_sync(bus, find_connector, "hook").state == made
    assert run_sync(bus, list_connector_ids) == ["hook"]
    for taken in ("hook", "web"):
        with pytest.raises((NameTaken, InvalidInput)):
            run_sync(bus, register_connector, taken, "console", Capabilities())
    run_sync(bus, unregister_connector, "hook")
    with pytest.raises(UnknownEntity, match="removed"):
        run_sync(bus, find_connector, "hook")


def test_no_conversation_can_take_the_name_of_an_outbox(bus: Engine) -> None:
    run_sync(bus, register_connector, "hook", "console", Capabilities())
    for outbox in ("outbox:hook", "outbox:later"):
        with pytest.raises(AddressError, match="reserved"):
            run_sync(bus, create_session, outbox, "user:eve")
    run_sync(bus, register_connector, "later", "console", Capabilities())
