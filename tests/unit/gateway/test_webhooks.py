"""`/api/webhooks`: who may register what, that secrets are shown once, and what became of the notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Topics
from magent2.connectors.outbox import drop_item, read_outbox, state_record
from magent2.connectors.relay import Relay, running_relay
from magent2.directory.erasure import erase_user
from magent2.directory.webhooks import WEBHOOKS_PER_OWNER_MAX, create_webhook, list_webhooks, update_webhook
from magent2.errors import WebhooksFull
from magent2.mail.retry_policy import RetryPolicy
from magent2.models.webhook_events import WEBHOOK_EVENTS
from magent2.telemetry.metrics import RunMetrics
from tests.support.api.sessions import everything
from tests.support.engine_wrappers import BeforeFirst
from tests.support.fake_receivers import answer, ok, webhook_receiver
from tests.support.gateway import asgi_client
from tests.support.keys import ACCESS, ADMIN, KeyHolder, create_key_holder
from tests.support.waiting import until

ANN = "user:ann"
URL = "https://example.com/hooks"
SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
AT_ONCE = RetryPolicy(first_s=0.01, max_s=0.02, jitter=0.0, give_up_after_s=0.0)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def http(bus: MemoryBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with asgi_client(bus, ACCESS) as client:
        yield client


@pytest.fixture
async def ann(bus: MemoryBus) -> KeyHolder:
    return await create_key_holder(bus, ANN)


async def create(http: httpx2.AsyncClient, headers: dict[str, str], url: str = URL, **fields: Any) -> httpx2.Response:
    return await http.post("/api/webhooks", json={"url": url, **fields}, headers=headers)


def states(bus: MemoryBus, webhook_id: str) -> list[str]:
    return [item.state for item in run_sync(bus, read_outbox, f"webhook:{webhook_id}")]


async def listed(http: httpx2.AsyncClient, path: str, state: str) -> list[dict[str, Any]]:
    return list((await http.get(f"{path}/deliveries?state={state}", headers=ADMIN)).json()["deliveries"])


async def test_a_secret_is_made_and_shown_once(bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder) -> None:
    made = (await create(http, ann.headers, events=["run.failed"])).json()
    shown = (await http.get(f"/api/webhooks/{made['id']}", headers=ann.headers)).json()
    listed = (await http.get("/api/webhooks", headers=ann.headers)).json()["webhooks"]

    assert (made["scope"], made["owner"], made["events"], len(made["secret"])) == ("own", ANN, ["run.failed"], 64)
    assert shown == listed[0] == {**made, "secret": None}
    (stored,) = await list_webhooks(Log(bus))
    assert stored.config == {"url": URL, "secret": made["secret"]}


async def test_a_given_secret_is_not_shown(http: httpx2.AsyncClient, ann: KeyHolder) -> None:
    made = await create(http, ann.headers, secret=SECRET)

    assert (made.status_code, made.json()["secret"], made.json()["events"]) == (201, None, list(WEBHOOK_EVENTS))


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"url": "http://example.com/"}, 422, "must begin with https://"),
        ({"url": "https://127.0.0.1/"}, 422, "the address is not public"),
        ({"url": "https://2130706433/"}, 422, "not an address in standard form"),
        ({"url": "https://user:pass@example.com/"}, 422, "no user, password or fragment"),  # pragma: allowlist secret
        ({"secret": "short"}, 422, "at least 16 characters"),  # pragma: allowlist secret
        ({"secret": "x" * 257}, 422, "at most 256 characters"),
        ({"events": []}, 422, "events"),
        ({"events": ["run.began"]}, 422, "events"),
        ({"target": "x"}, 422, "target"),
        ({"allow_private": True}, 403, "'allow_private' is for administrators"),
        ({"secret_env": "MAGENT2_SECRET_X"}, 403, "'secret_env' is for administrators"),
        ({"scope": "deployment"}, 403, "'scope' is for administrators"),
    ],
)
async def test_what_cannot_be_registered_is_refused_and_changes_nothing(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder, fields: dict[str, Any], status: int, words: str
) -> None:
    refused = await create(http, ann.headers, **fields)

    assert (refused.status_code, words in refused.text) == (status, True), refused.text
    assert (await bus.acall(Topics("webhook:"))).topics == ()


async def test_an_admin_may_do_so(http: httpx2.AsyncClient) -> None:
    config = {"secret_env": "MAGENT2_SECRET_X", "allow_private": True, "scope": "deployment"}

    made = await create(http, ADMIN, "http://127.0.0.1:9/", **config)

    assert (made.status_code, made.json()["scope"], made.json()["owner"]) == (201, "deployment", None)
    both = await create(http, ADMIN, secret=SECRET, secret_env="MAGENT2_SECRET_X")
    assert (both.status_code, "one of secret and secret_env" in both.text) == (422, True)


async def change(http: httpx2.AsyncClient, headers: dict[str, str], webhook_id: str, **fields: Any) -> httpx2.Response:
    return await http.patch(f"/api/webhooks/{webhook_id}", json=fields, headers=headers)


async def test_a_change_keeps_what_is_not_given(bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder) -> None:
    made = (await create(http, ann.headers, events=["run.failed"])).json()

    moved = (await change(http, ann.headers, made["id"], url="https://example.com/other")).json()
    wider = (await change(http, ann.headers, made["id"], events=["run.stopped", "run.failed"])).json()

    assert moved == {**made, "secret": None, "url": "https://example.com/other"}
    assert wider == {**moved, "events": ["run.failed", "run.stopped"]}
    (stored,) = await list_webhooks(Log(bus))
    assert stored.config == {"url": "https://example.com/other", "secret": made["secret"]}
    assert (await change(http, ann.headers, made["id"])).json() == wider


async def test_a_rotated_secret_is_shown_once_and_the_old_one_is_gone(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    made = (await create(http, ann.headers)).json()

    rotated = (await change(http, ann.headers, made["id"], rotate_secret=True)).json()
    assert (len(rotated["secret"]), rotated["secret"] != made["secret"]) == (64, True)
    given = await change(http, ann.headers, made["id"], secret=SECRET)

    assert (given.status_code, given.json()["secret"]) == (200, None)
    left = await everything(bus)
    assert SECRET in left
    assert made["secret"] not in left
    assert rotated["secret"] not in left


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"url": "http://example.com/"}, 422, "must begin with https://"),
        ({"url": "https://169.254.169.254/"}, 422, "the address is not public"),
        ({"secret": "short"}, 422, "at least 16 characters"),  # pragma: allowlist secret
        ({"secret": "x" * 257}, 422, "at most 256 characters"),
        ({"secret": SECRET, "rotate_secret": True}, 422, "'rotate_secret'"),
        ({"events": []}, 422, "events"),
        ({"scope": "deployment"}, 422, "scope"),
    ],
)
async def test_a_wrong_change_is_refused_and_changes_nothing(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder, fields: dict[str, Any], status: int, words: str
) -> None:
    made = (await create(http, ann.headers)).json()
    before = await list_webhooks(Log(bus))

    refused = await change(http, ann.headers, made["id"], **fields)

    assert (refused.status_code, words in refused.text) == (status, True), refused.text
    assert await list_webhooks(Log(bus)) == before


async def test_only_an_administrator_moves_a_webhook_that_may_call_private_addresses(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    config = {"url": "http://127.0.0.1:9/", "secret_env": "MAGENT2_SECRET_X", "allow_private": True}
    webhook = await create_webhook(Log(bus), ANN, config)

    refused = await change(http, ann.headers, webhook.id, url="http://127.0.0.1:6379/")
    moved = await change(http, ADMIN, webhook.id, url="http://127.0.0.1:10/")
    secret = await change(http, ADMIN, webhook.id, rotate_secret=True)

    assert (refused.status_code, refused.json()["code"]) == (403, "admin_only")
    assert (moved.status_code, moved.json()["url"]) == (200, "http://127.0.0.1:10/")
    assert (secret.status_code, "MAGENT2_SECRET_X of the workers" in secret.text) == (422, True)


async def test_two_changes_at_the_same_time_are_both_made(bus: MemoryBus) -> None:
    webhook = await create_webhook(Log(bus), ANN, {"url": URL, "secret": SECRET})
    other = BeforeFirst(bus, Append, lambda: run_sync(bus, update_webhook, webhook.id, events=["run.failed"]))

    changed = await update_webhook(Log(other), webhook.id, url="https://example.com/other")

    assert (changed.url, changed.events) == ("https://example.com/other", ("run.failed",))
    assert changed.created_ms == webhook.created_ms


async def test_a_waiting_notification_goes_to_the_new_address(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    made = (await create(http, ADMIN, "http://127.0.0.1:9/", allow_private=True)).json()
    await http.post(f"/api/webhooks/{made['id']}/test", headers=ADMIN)

    async with webhook_receiver() as receiver:
        rotated = (await change(http, ADMIN, made["id"], url=receiver.url, rotate_secret=True)).json()
        async with running_relay(bus, lambda engine: Relay(engine, retry=AT_ONCE)):
            await until(lambda: states(bus, made["id"]) == ["sent"])

    (post,) = receiver.posts
    assert post.is_signed_by(rotated["secret"])


async def test_the_number_of_an_owner_is_limited(bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder) -> None:
    for _ in range(WEBHOOKS_PER_OWNER_MAX):
        assert (await create(http, ann.headers)).status_code == 201

    refused = await create(http, ann.headers)

    assert (refused.status_code, refused.json()["code"]) == (409, "webhooks_full")
    assert len(await list_webhooks(Log(bus), ANN)) == WEBHOOKS_PER_OWNER_MAX
    assert (await create(http, ADMIN, scope="deployment")).status_code == 201


async def test_two_that_pass_the_first_check_together_do_not_exceed_the_limit(bus: MemoryBus) -> None:
    class TwoAtATime(Log):
        """Registers another webhook just before the append of this one."""

        async def append(self, append: Any) -> Any:
            await create_webhook(Log(self.bus), "user:ann", {"url": URL, "secret": SECRET})
            return await super().append(append)

    for _ in range(WEBHOOKS_PER_OWNER_MAX - 1):
        await create_webhook(Log(bus), "user:ann", {"url": URL, "secret": SECRET})

    with pytest.raises(WebhooksFull):
        await create_webhook(TwoAtATime(bus), "user:ann", {"url": URL, "secret": SECRET})

    assert len(await list_webhooks(Log(bus), "user:ann")) == WEBHOOKS_PER_OWNER_MAX


async def test_a_webhook_of_another_owner_is_unknown(bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder) -> None:
    bob = await create_key_holder(bus, "user:bob")
    theirs = (await create(http, bob.headers)).json()["id"]
    of_all = (await create(http, ADMIN, scope="deployment")).json()["id"]
    await create(http, ann.headers)

    for webhook in (theirs, of_all, "wh-never"):
        for method, path in (
            ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries"),
            ("POST", "/deliveries/evt-1/retry"),
        ):  # fmt: skip
            body: dict[str, Any] | None = {} if method == "PATCH" else None
            refused = await http.request(method, f"/api/webhooks/{webhook}{path}", json=body, headers=ann.headers)
            assert (refused.status_code, refused.json()["code"]) == (404, "unknown_entity"), (method, path)
    assert len((await http.get("/api/webhooks", headers=ann.headers)).json()["webhooks"]) == 1
    assert (await http.get("/api/webhooks?owner=user:bob", headers=ann.headers)).json()["webhooks"] == []
    assert len((await http.get("/api/webhooks", headers=ADMIN)).json()["webhooks"]) == 3
    of_bob = (await http.get("/api/webhooks?owner=user:bob", headers=ADMIN)).json()["webhooks"]
    assert [one["id"] for one in of_bob] == [theirs]


async def test_a_test_goes_through_the_relay_and_can_be_sent_again(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    async with webhook_receiver() as receiver:
        made = (await create(http, ADMIN, receiver.url, allow_private=True)).json()
        path = f"/api/webhooks/{made['id']}"
        receiver.answers.append(answer("410 Gone"))

        queued = (await http.post(f"{path}/test", headers=ADMIN)).json()
        async with running_relay(bus, lambda engine: Relay(engine, retry=AT_ONCE)):
            await until(lambda: states(bus, made["id"]) == ["dead"])
            dead = await listed(http, path, "dead")
            again = await http.post(f"{path}/deliveries/{queued['id']}/retry", headers=ADMIN)
            await until(lambda: states(bus, made["id"]) == ["sent"])
            sent = await listed(http, path, "sent")

    assert (queued["type"], queued["state"], queued["conversation_id"]) == ("webhook.test", "waiting", None)
    assert [one["id"] for one in (*dead, again.json(), *sent)] == [queued["id"]] * 3
    assert "410" in dead[0]["reason"]
    assert all(post.is_signed_by(made["secret"]) for post in receiver.posts)
    repeated = await http.post(f"{path}/deliveries/{queued['id']}/retry", headers=ADMIN)
    assert (repeated.status_code, "only dead and unknown" in repeated.text) == (422, True)


async def test_attempts_are_counted_by_outcome(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    metrics = RunMetrics()

    def counted(engine: Engine) -> Relay:
        relay = Relay(engine, retry=replace(AT_ONCE, give_up_after_s=60.0))
        relay.on_outcome = metrics.count_delivery
        return relay

    async with webhook_receiver() as receiver:
        made = (await create(http, ADMIN, receiver.url, allow_private=True)).json()
        receiver.answers += [answer("503 Service Unavailable"), ok(), answer("410 Gone")]
        for _ in range(2):
            await http.post(f"/api/webhooks/{made['id']}/test", headers=ADMIN)
        async with running_relay(bus, counted):
            await until(lambda: states(bus, made["id"]) == ["sent", "dead"])

    seen = {
        sample.labels["outcome"]: sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "magent2_deliveries_total" and sample.labels["kind"] == "webhook"
    }
    assert seen == {"retried": 1, "sent": 1, "dead": 1}


async def test_a_retry_is_refused_if_an_operator_has_just_decided_otherwise(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    made = (await create(http, ann.headers)).json()
    path, name = f"/api/webhooks/{made['id']}", f"webhook:{made['id']}"
    delivery = (await http.post(f"{path}/test", headers=ann.headers)).json()["id"]
    await bus.acall(Append(records=(state_record(delivery, name, "dead", reason="no"),)))
    quicker = BeforeFirst(bus, Append, lambda: run_sync(bus, drop_item, name, delivery))

    async with asgi_client(quicker, ACCESS) as client:
        refused = await client.post(f"{path}/deliveries/{delivery}/retry", headers=ann.headers)

    assert (refused.status_code, refused.json()["code"]) == (409, "id_conflict")
    assert states(bus, made["id"]) == ["dropped"]


async def test_an_operator_sees_and_retries_all_deliveries(bus: MemoryBus, http: httpx2.AsyncClient) -> None:
    made = (await create(http, ADMIN, "http://127.0.0.1:9/", allow_private=True)).json()
    queued = (await http.post(f"/api/webhooks/{made['id']}/test", headers=ADMIN)).json()
    name = f"webhook:{made['id']}"
    async with running_relay(bus, lambda engine: Relay(engine, retry=AT_ONCE)):
        await until(lambda: states(bus, made["id"]) == ["dead"])

    items = (await http.get("/api/outbox?state=dead", headers=ADMIN)).json()["items"]
    assert [(item["connector"], item["id"]) for item in items] == [(name, queued["id"])]
    retried = await http.post(f"/api/outbox/{name}/{queued['id']}/retry", headers=ADMIN)
    assert (retried.status_code, retried.json()["state"]) == (200, "waiting")


async def test_a_deleted_webhook_leaves_neither_its_url_nor_its_secret(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    made = (await create(http, ann.headers)).json()
    await http.post(f"/api/webhooks/{made['id']}/test", headers=ann.headers)

    assert (await http.delete(f"/api/webhooks/{made['id']}", headers=ann.headers)).status_code == 204

    left = await everything(bus)
    assert made["secret"] not in left
    assert URL not in left
    assert await read_outbox(Log(bus), f"webhook:{made['id']}") == []


async def test_erasing_a_user_erases_their_webhooks_and_no_others(
    bus: MemoryBus, http: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    made = (await create(http, ann.headers)).json()
    await create(http, ADMIN, scope="deployment")

    erased = await erase_user(Log(bus), ANN)

    assert erased.webhooks == (made["id"],)
    assert [webhook.owner for webhook in await list_webhooks(Log(bus))] == [None]
    assert ANN not in await everything(bus)
