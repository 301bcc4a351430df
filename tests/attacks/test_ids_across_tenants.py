"""Two users who choose the same ids: neither learns of the other, and neither blocks the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Claim, Describe, SetHead
from magent2.bus.records import NewRecord
from magent2.errors import IdConflict
from magent2.gateway.app import create_app
from magent2.gateway.routes.messages import envelope_id_for
from magent2.mail.addressing import envelope_digest
from magent2.mail.delivery import DeliveryResult, SendOptions, deliver, find_mail
from magent2.models.address import chat_topic, control_topic
from magent2.models.envelope import MessageEnvelope
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.gateway import app_client, message
from tests.support.keys import ACCESS, KeyHolder, create_key_holder

ANN, BOB = "user:ann", "user:bob"
CONVERSATIONS = {ANN: "anns", BOB: "bobs"}


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def mail(user: str, **fields: Any) -> MessageEnvelope:
    given = {"id": "1", "conversation_id": CONVERSATIONS[user], "sender": user, "recipient": "agent:Ada"}
    return MessageEnvelope(**{**given, "content": f"from {user}", **fields})


def stop(user: str, **fields: Any) -> MessageEnvelope:
    return mail(user, **{"id": "stop-1", "type": "control", "content": "stop", **fields})


def post(bus: Engine, user: str, envelope: MessageEnvelope) -> DeliveryResult:
    return run_sync(bus, deliver, envelope, SendOptions(principal=user))


def write_as_before(bus: Engine, envelope: MessageEnvelope, *topics: str) -> None:
    """Append an accepted envelope as release 0.2 did: under the envelope's own id, also in the agent's inbox."""
    payload, digest = envelope.model_dump(mode="json"), envelope_digest(envelope)
    records = tuple(NewRecord(topic, payload, envelope.id, digest=digest) for topic in topics)
    stream = f"stream:{envelope.conversation_id}"
    bus.call(Append(records=records, heads=(SetHead(stream, {"owner": envelope.sender, "active_agent": "Ada"}),)))


def count(bus: Engine, topic: str) -> int:
    return bus.call(Describe((topic,)))[0].last


def test_two_users_use_one_envelope_id_for_one_agent(bus: Engine) -> None:
    for user in (ANN, BOB):
        assert not post(bus, user, mail(user)).appended.repeat
        assert post(bus, user, mail(user)).appended.repeat

    lanes = bus.call(Claim(worker="w", agents=("Ada",), limit=10, lease_s=60)).lanes
    assert sorted(lane.owner.conversation for lane in lanes) == ["anns", "bobs"]
    assert {lane.mail[0].payload["id"] for lane in lanes} == {"1"}


def test_the_ids_of_a_conversations_own_topics_are_those_of_its_envelopes(bus: Engine) -> None:
    post(bus, ANN, mail(ANN))

    assert [record.id for record in bus.read("chat:anns")] == ["1"]


def test_two_users_use_one_id_for_a_command(bus: Engine) -> None:
    for user in (ANN, BOB):
        post(bus, user, mail(user))
    for user in (ANN, BOB):
        first = post(bus, user, stop(user))
        again = post(bus, user, stop(user))
        assert (first.appended.repeat, again.appended.repeat) == (False, True)
        assert again.appended.seqs == first.appended.seqs

    assert count(bus, "control:Ada") == 2


def test_an_id_with_another_body_is_refused_in_its_own_conversation(bus: Engine) -> None:
    post(bus, ANN, mail(ANN))
    post(bus, ANN, stop(ANN))

    for changed in (mail(ANN, content="else"), stop(ANN, content="stop_after_turn")):
        with pytest.raises(IdConflict):
            post(bus, ANN, changed)


def test_a_user_cannot_take_the_record_id_of_another_inbox_record(bus: Engine) -> None:
    post(bus, ANN, mail(ANN))
    (taken,) = bus.read("chat:Ada")

    post(bus, BOB, mail(BOB, id=taken.id))

    assert count(bus, "chat:Ada") == 2


def test_a_message_accepted_by_the_release_before_is_still_a_repeat(bus: Engine) -> None:
    write_as_before(bus, mail(ANN), chat_topic("anns"), chat_topic("Ada"))

    assert post(bus, ANN, mail(ANN)).appended.repeat
    with pytest.raises(IdConflict):
        post(bus, ANN, mail(ANN, content="else"))
    assert not post(bus, BOB, mail(BOB)).appended.repeat
    assert count(bus, "chat:Ada") == 2


def test_a_command_accepted_by_the_release_before_is_still_a_repeat(bus: Engine) -> None:
    write_as_before(bus, mail(ANN), chat_topic("anns"), chat_topic("Ada"))
    write_as_before(bus, stop(ANN), control_topic("Ada"))
    post(bus, BOB, mail(BOB))

    assert post(bus, ANN, stop(ANN)).appended.repeat
    with pytest.raises(IdConflict):
        post(bus, ANN, stop(ANN, content="stop_after_turn"))
    assert not post(bus, BOB, stop(BOB)).appended.repeat
    assert count(bus, "control:Ada") == 2


def test_mail_is_found_by_its_envelope_id_in_its_own_conversation_only(bus: Engine) -> None:
    write_as_before(bus, mail(ANN, id="old"), chat_topic("anns"), chat_topic("Ada"))
    post(bus, ANN, mail(ANN, id="new"))

    for envelope_id in ("old", "new"):
        found = run_sync(bus, find_mail, "chat:Ada", "anns", envelope_id)
        assert found is not None
        assert found.payload["id"] == envelope_id
        assert run_sync(bus, find_mail, "chat:Ada", "bobs", envelope_id) is None


# --- over HTTP


@pytest.fixture
async def people() -> AsyncIterator[tuple[httpx2.AsyncClient, KeyHolder, KeyHolder]]:
    bus = MemoryBus()
    async with app_client(create_app(bus, access=ACCESS)) as client:
        yield client, await create_key_holder(bus, ANN), await create_key_holder(bus, BOB)
    await bus.aclose()


async def test_a_gateway_accepts_the_same_envelope_id_from_two_users(
    people: tuple[httpx2.AsyncClient, KeyHolder, KeyHolder],
) -> None:
    client, ann, bob = people

    for holder, user in ((ann, ANN), (bob, BOB)):
        body = message("hello", CONVERSATIONS[user], id="1", sender=user)
        answers = [await client.post("/send", json=body, headers=holder.headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [answers[0].status_code] * 2
        assert answers[0].status_code in (200, 202)
        changed = await client.post("/send", json={**body, "content": "else"}, headers=holder.headers)
        assert (changed.status_code, changed.json()["code"]) == (409, "id_conflict")


async def test_a_user_cannot_use_up_the_computed_id_of_another_users_message(
    people: tuple[httpx2.AsyncClient, KeyHolder, KeyHolder],
) -> None:
    client, ann, bob = people
    created = await client.post("/api/sdk/session/create", json={"session_id": "anns"}, headers=ann.headers)
    assert created.status_code < 300, created.text
    computed = envelope_id_for("anns", "k1")

    stolen = message("mine", "bobs", id=computed, sender=BOB, recipient=f"agent:{created.json()['agent_name']}")
    taken = await client.post("/send", json=stolen, headers=bob.headers)
    asked = {"session_id": "anns", "user_input": "hi", "client_message_id": "k1", "wait": False}
    sent = await client.post("/api/sdk/session/message", json=asked, headers=ann.headers)

    assert taken.status_code in (200, 202), taken.text
    assert sent.status_code in (200, 202), sent.text
