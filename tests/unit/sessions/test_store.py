from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from magent2.bus.log import Log
from magent2.bus.operations import Claim
from magent2.errors import IdConflict, NameTaken, TopicDeleted
from magent2.mail.registration import register_agent
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.store import TITLE_MAX_CHARS, InMemorySessionStore, SessionStore, short_title


@pytest.fixture
async def store() -> AsyncIterator[InMemorySessionStore]:
    store = InMemorySessionStore()
    yield store
    await store.bus.aclose()


def envelope(content: str = "hi", recipient: str = "agent:Dev", **fields: Any) -> MessageEnvelope:
    return MessageEnvelope(conversation_id="s1", sender="user:ann", recipient=recipient, content=content, **fields)


async def test_the_first_record_of_a_session_says_that_it_was_created(store: InMemorySessionStore) -> None:
    session = await store.create("s1", "ann", {"title": "Hello"})

    (first,) = await store.events("s1")
    assert first.payload["status"] == "created"
    assert (session.owner, session.head["title"], session.last) == ("ann", "Hello", 1)


async def test_creating_again_finds_the_first_and_another_owner_is_refused(store: InMemorySessionStore) -> None:
    first = await store.create("s1", "ann")

    assert await store.create("s1", "ann") == first
    with pytest.raises(IdConflict):
        await store.create("s1", "bob")
    assert len(await store.events("s1")) == 1


async def test_a_session_cannot_take_the_name_of_an_agent(store: InMemorySessionStore) -> None:
    await register_agent(Log(store.bus), "Dev")

    with pytest.raises(NameTaken):
        await store.create("Dev", "ann")


async def test_a_session_that_does_not_exist_is_none(store: InMemorySessionStore) -> None:
    assert await store.get("never") is None


async def test_a_post_is_mail_and_an_event_in_one_append(store: InMemorySessionStore) -> None:
    sent = envelope("what time is it?\nreally")

    await store.post(sent)

    (event,) = await store.events("s1")
    claims = await store.bus.acall(Claim(worker="w", agents=("Dev",), limit=1, lease_s=60))
    assert (event.payload["event"], event.payload["message_id"]) == ("user_message", sent.id)
    assert claims.lanes[0].mail[0].payload["id"] == sent.id
    session = await store.get("s1")
    assert session is not None
    assert session.head["last_text"] == "what time is it?"


async def test_later_messages_do_not_change_the_first_text(store: InMemorySessionStore) -> None:
    await store.create("s1", "user:ann")
    await store.post(envelope("how deep is the sea?"))
    await store.post(envelope("and the lake?"))

    await SessionStore(store.bus).post(envelope("from another process"))

    session = await store.get("s1")
    assert session is not None
    assert (session.head["first_text"], session.head["last_text"]) == ("how deep is the sea?", "from another process")


async def test_where_no_agent_is_active_the_first_text_stays_as_well(store: InMemorySessionStore) -> None:
    await store.create("s1", "user:ann")

    for text in ("one", "two"):
        await SessionStore(store.bus).post(envelope(text, "chat:s1"))

    session = await store.get("s1")
    assert session is not None
    assert (session.head["first_text"], session.head["last_text"]) == ("one", "two")


async def test_a_repeated_post_shows_once(store: InMemorySessionStore) -> None:
    sent = envelope(id="m1")

    first = await store.post(sent)
    again = await store.post(envelope(id="m1"))

    assert again.appended.repeat
    assert again.appended.seqs == first.appended.seqs
    assert len(await store.events("s1")) == 1


async def test_a_command_is_delivered_and_is_no_message_of_the_conversation(store: InMemorySessionStore) -> None:
    await store.post(envelope("hi"))

    delivered = await store.post(envelope("stop", type="control"))

    assert delivered.topics == ("control:Dev",)
    assert [event.payload["text"] for event in await store.events("s1")] == ["hi"]
    session = await store.get("s1")
    assert session is not None
    assert session.head["last_text"] == "hi"


async def test_switching_the_agent_says_so_once(store: InMemorySessionStore) -> None:
    await store.post(envelope())

    assert await store.set_active_agent("s1", "Ops") is True
    assert await store.set_active_agent("s1", "Ops") is False

    handoff = (await store.events("s1"))[-1].payload
    assert (handoff["event"], handoff["source"], handoff["target"]) == ("handoff", "Dev", "Ops")
    assert (await store.post(envelope(recipient="chat:s1"))).agent == "Ops"


async def test_events_resume_after_a_seq(store: InMemorySessionStore) -> None:
    await store.create("s1", "ann")
    await store.post(envelope("one"))
    await store.post(envelope("two"))

    assert [event.payload["text"] for event in await store.events("s1", since=1)] == ["one", "two"]


async def test_sessions_are_listed_by_last_activity_and_by_owner(store: InMemorySessionStore) -> None:
    await store.create("a", "ann")
    await store.create("b", "bob")

    listed, _ = await store.sessions()
    of_ann, _ = await store.sessions(owner="ann")

    assert {session.session_id for session in listed} == {"a", "b"}
    assert [session.session_id for session in of_ann] == ["a"]


async def test_a_deleted_session_is_gone_and_takes_no_mail(store: InMemorySessionStore) -> None:
    await store.post(envelope())

    await store.delete("s1")

    with pytest.raises(TopicDeleted):
        await store.get("s1")
    with pytest.raises(TopicDeleted):
        await store.post(envelope())
    claims = await store.bus.acall(Claim(worker="w", agents=("Dev",), limit=1, lease_s=60))
    assert claims.lanes == ()


def test_a_title_is_one_short_line() -> None:
    assert short_title(None) == ""
    assert short_title("  hello\nworld") == "hello"
    assert len(short_title("x" * 500)) == TITLE_MAX_CHARS
