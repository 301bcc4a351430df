"""Webhooks, on every engine: a worker, a relay and a real HTTP receiver. What is on the log is reported, once."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.connectors.outbox import OutboxItem, drop_item, list_outboxes, read_outbox, retry_item
from magent2.connectors.relay import Relay, running_relay
from magent2.directory.webhooks import Webhook, create_webhook, delete_webhook
from magent2.mail.delivery import SendOptions
from magent2.mail.retry_policy import RetryPolicy
from magent2.models.address import WEBHOOK_RELAY, outbox_topic
from magent2.models.budgets import Budgets, Limit
from magent2.models.webhook_events import check_events
from magent2.runner.echo import EchoRunner
from magent2.sessions.store import delete_session
from magent2.sessions.usage.budgets import BudgetName, read_limits, set_limit
from magent2.worker.lane_run import Outcome
from magent2.worker.worker import Worker
from tests.support.audit import whole_log
from tests.support.budgets import looking
from tests.support.engine_wrappers import OperationCounter
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.fake_receivers import ReceivedPost, WebhookReceiver, answer, webhook_receiver
from tests.support.runners import FailingRunner, GatedRunner
from tests.support.worker_fixture import AGENT, command, run_worker, send, stream, until
from tests.unit.worker.test_approvals import PayingAgent, decide

SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
ANN = "user:ann"
QUICK = RetryPolicy(first_s=0.01, max_s=0.02, jitter=0.0, give_up_after_s=60.0)
IMPATIENT = RetryPolicy(first_s=0.01, max_s=0.02, jitter=0.0, give_up_after_s=0.05)
AT_ONCE = RetryPolicy(first_s=0.01, max_s=0.02, jitter=0.0, give_up_after_s=0.0)


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


@pytest.fixture
def memory() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as found:
        yield found


def register(bus: Engine, url: str, *events: str, owner: str | None = ANN) -> Webhook:
    config = {"url": url, "secret": SECRET, "allow_private": True}
    return run_sync(bus, create_webhook, owner, config, events)


def ask(bus: Engine, text: str = "hello", conversation: str = "one", principal: str = ANN) -> str:
    return send(bus, text, conversation, SendOptions(principal=principal))


@asynccontextmanager
async def relaying(bus: Engine, retry: RetryPolicy = QUICK, **options: Any) -> AsyncIterator[None]:
    async with running_relay(bus, lambda engine: Relay(engine, retry=retry, **options)):
        yield


def body(post: ReceivedPost) -> dict[str, Any]:
    return dict(json.loads(post.body))


def types(receiver: WebhookReceiver) -> list[str]:
    return [body(post)["type"] for post in receiver.posts]


def outbox(bus: Engine, webhook: Webhook) -> list[OutboxItem]:
    return run_sync(bus, read_outbox, webhook.connector)


def states(bus: Engine, webhook: Webhook) -> list[str]:
    return [item.state for item in outbox(bus, webhook)]


async def work(bus: Engine, runner: Any, outcome: Outcome, count: int = 1) -> None:
    """Run a worker until so many runs have ended like this."""
    async with run_worker(bus, runner) as service:
        await until(lambda: service.outcomes[outcome] == count)


async def test_the_end_of_a_run_is_a_signed_post_with_ids_and_no_text(bus: Engine, receiver: WebhookReceiver) -> None:
    webhook = register(bus, receiver.url)
    asked = ask(bus, "a text that stays here")

    async with relaying(bus):
        await work(bus, EchoRunner(), Outcome.ANSWERED)
        await until(lambda: states(bus, webhook) == ["sent"])

    (post,) = receiver.posts
    run = next(event for event in stream(bus) if event["event"] == "run" and event["status"] == "finished")
    assert post.is_signed_by(SECRET)
    assert b"stays here" not in post.body
    assert body(post) == {
        "id": post.headers["idempotency-key"],
        "type": "run.finished",
        "created_at": body(post)["created_at"],
        "webhook_id": webhook.id,
        "data": {
            "conversation_id": "one",
            "run_id": run["run_id"],
            "agent": AGENT,
            "envelope_id": asked,
            "owner": ANN,
            "status": "finished",
        },
    }


async def test_failed_and_stopped_runs_are_reported(bus: Engine, receiver: WebhookReceiver) -> None:
    webhook = register(bus, receiver.url)
    ask(bus)
    await work(bus, FailingRunner(ValueError("a bug")), Outcome.BURIED)
    ask(bus)
    gated = GatedRunner()
    async with run_worker(bus, gated) as service:
        await until(lambda: gated.begun)
        command(bus, "stop")
        await until(lambda: service.outcomes[Outcome.STOPPED])

    async with relaying(bus):
        await until(lambda: states(bus, webhook) == ["sent", "sent"])

    assert [(body(post)["type"], body(post)["data"]["status"]) for post in receiver.posts] == [
        ("run.failed", "failed"),
        ("run.stopped", "stopped"),
    ]
    assert all(b"a bug" not in post.body for post in receiver.posts)


async def test_a_run_that_waits_for_approval_is_reported_once_with_all_its_calls(
    bus: Engine, receiver: WebhookReceiver
) -> None:
    webhook = register(bus, receiver.url)
    agent = PayingAgent(orders=2)
    ask(bus)
    await work(bus, agent.runner, Outcome.PAUSED)
    decide(bus, "pay-0")
    decide(bus, "pay-1")
    await work(bus, agent.runner, Outcome.ANSWERED)

    async with relaying(bus):
        await until(lambda: states(bus, webhook) == ["sent", "sent"])

    assert types(receiver) == ["approval.requested", "run.finished"]
    requested = body(receiver.posts[0])["data"]
    asked = next(event for event in stream(bus) if event["event"] == "approval")
    assert (requested["tool_call_ids"], requested["status"]) == (["pay-0", "pay-1"], "waiting")
    assert requested["expires_at"] == asked["expires_at"]


async def test_a_run_that_has_used_up_its_budget_is_reported_once(bus: Engine, receiver: WebhookReceiver) -> None:
    webhook = register(bus, receiver.url)
    ask(bus)
    async with run_worker(bus, looking(5)) as service, relaying(bus):
        service.budgets.configured = lambda: Budgets(run=Limit(calls=3))
        await until(lambda: states(bus, webhook) == ["sent"])
        (waiting,) = run_sync(bus, read_limits).waiting.values()
        run_sync(bus, set_limit, BudgetName("run", waiting.run), Limit(calls=10), "user:root")
        await until(lambda: states(bus, webhook) == ["sent", "sent"])

    assert types(receiver) == ["budget.reached", "run.finished"]
    reached = body(receiver.posts[0])["data"]
    assert (reached["status"], reached["budgets"], reached["resumes_at"]) == ("waiting", ["run"], None)
    assert reached["run_id"] == body(receiver.posts[1])["data"]["run_id"]


async def test_a_webhook_gets_the_events_of_its_owner_and_those_that_it_chose(memory: MemoryBus) -> None:
    mine = register(memory, "http://127.0.0.1:9/", "run.finished")
    failed_only = register(memory, "http://127.0.0.1:9/", "run.failed")
    bobs = register(memory, "http://127.0.0.1:9/", owner="user:bob")
    all_of_them = register(memory, "http://127.0.0.1:9/", owner=None)
    ask(memory)
    ask(memory, "hi", "bobs", "user:bob")
    ask(memory, "trusted code", "nobodys", None)  # type: ignore[arg-type]  # a conversation without an owner

    await work(memory, EchoRunner(), Outcome.ANSWERED, 3)

    told = {name: [item.message.conversation_id for item in outbox(memory, webhook)] for name, webhook in (
        ("mine", mine), ("failed", failed_only), ("bob", bobs), ("all", all_of_them))}  # fmt: skip
    assert (told["mine"], told["failed"], told["bob"]) == (["one"], [], ["bobs"])
    assert sorted(told["all"]) == ["bobs", "nobodys", "one"]


async def test_a_new_webhook_counts_and_a_deleted_one_does_not_while_a_worker_runs(bus: Engine) -> None:
    async with run_worker(bus, EchoRunner()) as service:
        webhook = register(bus, "http://127.0.0.1:9/")
        await until(lambda: service.webhooks.of(ANN, "run.finished") == [webhook])
        ask(bus)
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)
        assert len(outbox(bus, webhook)) == 1

        run_sync(bus, delete_webhook, webhook.id)
        await until(lambda: not service.webhooks.of(ANN, "run.finished"))
        ask(bus)
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert outbox(bus, webhook) == []


async def test_a_run_that_ends_while_its_webhook_is_deleted_ends_all_the_same(bus: Engine) -> None:
    webhook = register(bus, "http://127.0.0.1:9/")
    ask(bus)
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)
        run_sync(bus, delete_webhook, webhook.id)
        service.webhooks.of = lambda owner, event: [webhook]  # type: ignore[method-assign]  # it has not seen this yet
        ask(bus)
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)
    assert len(outbox(bus, webhook)) == 1

    async with relaying(bus):  # drops the job, and empties the outbox
        await until(lambda: not outbox(bus, webhook))


async def test_a_deleted_conversation_takes_its_notifications_with_it(
    memory: MemoryBus, receiver: WebhookReceiver
) -> None:
    webhook = register(memory, receiver.url)
    ask(memory)
    ask(memory, "kept", "two")
    await work(memory, EchoRunner(), Outcome.ANSWERED, 2)

    run_sync(memory, delete_session, "one")
    async with relaying(memory):
        await until(lambda: states(memory, webhook) == ["sent"])

    assert [body(post)["data"]["conversation_id"] for post in receiver.posts] == ["two"]


async def test_an_unknown_outcome_is_repeated_under_the_same_id(bus: Engine, receiver: WebhookReceiver) -> None:
    receiver.answers += [None, answer("500 Internal Server Error")]
    webhook = register(bus, receiver.url)
    ask(bus)
    await work(bus, EchoRunner(), Outcome.ANSWERED)

    async with relaying(bus):
        await until(lambda: states(bus, webhook) == ["sent"])

    assert len(receiver.posts) == 3
    assert len({(post.headers["idempotency-key"], post.body) for post in receiver.posts}) == 1


async def test_a_dead_receiver_delays_nobody_and_a_person_sends_its_notification_again(
    bus: Engine, receiver: WebhookReceiver
) -> None:
    with socket.socket() as unheard:  # bound, so that no other process gets the port
        unheard.bind(("127.0.0.1", 0))
        dead = register(bus, f"http://127.0.0.1:{unheard.getsockname()[1]}/")
        alive = register(bus, receiver.url)
        ask(bus)
        await work(bus, EchoRunner(), Outcome.ANSWERED)
        async with relaying(bus, QUICK):
            await until(lambda: states(bus, alive) == ["sent"])
            assert states(bus, dead) == ["waiting"]
        async with relaying(bus, AT_ONCE):
            await until(lambda: states(bus, dead) == ["dead"])
    assert [event for event in stream(bus) if event["event"] == "error"] == []
    assert dead.connector in run_sync(bus, list_outboxes)

    (item,) = outbox(bus, dead)
    run_sync(bus, retry_item, dead.connector, item.id)
    async with relaying(bus, AT_ONCE):
        await until(lambda: states(bus, dead) == ["dead"])
    run_sync(bus, drop_item, dead.connector, item.id)
    assert states(bus, dead) == ["dropped"]


async def test_notifications_behind_one_that_was_given_up_are_not_tried_for_as_long_again(
    memory: MemoryBus, receiver: WebhookReceiver
) -> None:
    webhook = register(memory, receiver.url)
    for _ in range(3):
        ask(memory)
    await work(memory, EchoRunner(), Outcome.ANSWERED, 3)
    receiver.answers += [answer("503 Service Unavailable")] * 100

    async with relaying(memory, AT_ONCE):
        await until(lambda: states(memory, webhook) == ["dead"] * 3)

    assert len(receiver.posts) == 1
    assert [("waited too long" in (item.reason or "")) for item in outbox(memory, webhook)] == [False, True, True]


async def test_an_old_notification_is_sent_if_nothing_says_that_its_receiver_is_dead(
    memory: MemoryBus, receiver: WebhookReceiver
) -> None:
    webhook = register(memory, receiver.url)
    ask(memory)
    await work(memory, EchoRunner(), Outcome.ANSWERED)

    async with relaying(memory, AT_ONCE):  # no relay ran while it became old
        await until(lambda: states(memory, webhook) == ["sent"])


async def test_the_worker_of_contract_v1_reports_too(memory: MemoryBus, receiver: WebhookReceiver) -> None:
    webhook = register(memory, receiver.url)
    ask(memory)

    await asyncio.to_thread(Worker(AGENT, memory, EchoRunner()).process_available)

    assert states(memory, webhook) == ["waiting"]


async def operations_of_a_run(memory: MemoryBus, conversation: str) -> list[str]:
    """The operations of a worker from a message to its answer."""
    bus = OperationCounter(memory)
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: "Claim" in bus.kinds[-1:])
        before = len(bus.kinds)
        ask(memory, "hi", conversation)
        await until(lambda: service.outcomes[Outcome.ANSWERED])
        return sorted(set(bus.kinds[before:]))


async def test_a_run_reads_and_writes_nothing_for_webhooks_that_are_not_told_of_it(memory: MemoryBus) -> None:
    without = await operations_of_a_run(memory, "one")
    register(memory, "http://127.0.0.1:9/", owner="user:bob")
    with_others = await operations_of_a_run(memory, "two")

    assert without == with_others == ["Claim", "Settle"]
    assert whole_log(memory, f"chat:{WEBHOOK_RELAY}") == []


async def test_a_webhook_of_the_agents_file_is_sent_by_a_worker_that_has_it(
    memory: MemoryBus, receiver: WebhookReceiver
) -> None:
    config = {"url": receiver.url, "secret": SECRET, "allow_private": True}
    webhook = Webhook("config.ops", None, check_events(()), config)
    configured: Mapping[str, Webhook] = {webhook.id: webhook}
    ask(memory)
    async with run_worker(memory, EchoRunner()) as service:
        service.webhooks.configured = lambda: configured
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    async with relaying(memory):
        await until(lambda: outbox(memory, webhook)[0].tries)
    assert "[webhook.ops]" in str(outbox(memory, webhook)[0].reason)
    async with relaying(memory, configured=lambda: configured):
        await until(lambda: states(memory, webhook) == ["sent"])

    assert types(receiver) == ["run.finished"]


def test_an_outbox_of_webhooks_has_the_name_of_its_webhook() -> None:
    webhook = Webhook("wh-1", None, (), {"url": "https://example.com"})

    assert outbox_topic(webhook.connector) == "outbox:webhook:wh-1"
    assert "example" not in repr(webhook)
