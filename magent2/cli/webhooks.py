"""The command `webhooks`: where the events of runs are sent."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING

import click

from magent2.cli.options import CommandFailed, GatewayOptions, gateway_options, json_option
from magent2.cli.output import print_data, print_json, print_note, print_table, shortened
from magent2.models.webhook_events import WEBHOOK_EVENTS

if TYPE_CHECKING:
    from magent2.client import Client, WebhookDelivery
    from magent2.models.api.webhooks import WebhookScope
    from magent2.models.webhook_events import WebhookEvent

TEST_WAIT_S = 60.0
TEST_POLL_S = 0.2


@click.group()
def webhooks() -> None:
    """Manage webhooks, which are told of the ends of runs.

    They are also told when a run needs approval or has reached its budget. The commands are about the webhooks of the
    token or API key in use. Webhooks of the agents file are not listed.
    """


@webhooks.command(epilog="Example: magent2 webhooks add https://example.com/hooks --event run.failed")
@click.argument("receiver", metavar="URL")
@click.option(
    "--event",
    "events",
    type=click.Choice(WEBHOOK_EVENTS),
    multiple=True,
    help="Event that it is told of; all events without this option.",
)
@click.option("--secret-file", type=click.File(), help="File with the secret that signs the requests; '-' is stdin.")
@click.option(
    "--secret-env", metavar="NAME", help="Variable MAGENT2_SECRET_... of the workers with the secret; for admins."
)
@click.option(
    "--scope",
    type=click.Choice(["own", "deployment"]),
    help="Tell it of your own conversations, or of all of them, which is for admins and their default.",
)
@click.option("--allow-private", is_flag=True, help="Allow a private address, or a URL without TLS; for admins.")
@json_option
@gateway_options
def add(
    receiver: str,
    events: tuple[WebhookEvent, ...],
    secret_file: IO[str] | None,
    secret_env: str | None,
    scope: WebhookScope | None,
    allow_private: bool,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Add a webhook, and print its secret if none was given. The secret is shown once."""
    with gateway.connect() as client:
        added = client.create_webhook(
            receiver,
            events or None,
            secret=None if secret_file is None else secret_file.read().strip(),
            secret_env=secret_env,
            scope=scope,
            allow_private=allow_private,
        )
    if as_json:
        print_json(added)
        return
    print_note(f"added webhook {added.id}")
    if added.secret is not None:
        print_note("its secret, which is not shown again:")
        print_data(added.secret)


@webhooks.command("ls")
@json_option
@gateway_options
def list_webhooks(as_json: bool, gateway: GatewayOptions) -> None:
    """List the webhooks, without their secrets."""
    with gateway.connect() as client:
        found = client.webhooks()
    if as_json:
        print_json(list(found))
        return
    rows = [(webhook.id, webhook.owner or "-", webhook.url, " ".join(webhook.events)) for webhook in found]
    print_table(("WEBHOOK", "OWNER", "URL", "EVENTS"), rows)


@webhooks.command(epilog="Example: magent2 webhooks update ID --event run.failed --event run.stopped")
@click.argument("webhook")
@click.option("--receiver", metavar="URL", help="URL that it is sent to from now on.")
@click.option(
    "--event", "events", type=click.Choice(WEBHOOK_EVENTS), multiple=True, help="Event that it is told of from now on."
)
@click.option("--secret-file", type=click.File(), help="File with the new secret; '-' is stdin.")
@click.option("--rotate-secret", is_flag=True, help="Make a new secret and print it. The old one is not used again.")
@json_option
@gateway_options
def update(
    webhook: str,
    receiver: str | None,
    events: tuple[WebhookEvent, ...],
    secret_file: IO[str] | None,
    rotate_secret: bool,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Change a webhook. What is not given stays, also the secret."""
    if receiver is None and not events and secret_file is None and not rotate_secret:
        raise click.UsageError("give --receiver, --event, --secret-file or --rotate-secret")
    with gateway.connect() as client:
        changed = client.update_webhook(
            webhook,
            url=receiver,
            events=events or None,
            secret=None if secret_file is None else secret_file.read().strip(),
            rotate_secret=rotate_secret,
        )
    if as_json:
        print_json(changed)
        return
    print_note(f"updated webhook {changed.id}")
    if changed.secret is not None:
        print_note("its new secret, which is not shown again:")
        print_data(changed.secret)


@webhooks.command("rm")
@click.argument("webhook")
@gateway_options
def remove(webhook: str, gateway: GatewayOptions) -> None:
    """Remove a webhook with its secret. Notifications that wait are not sent."""
    with gateway.connect() as client:
        client.delete_webhook(webhook)
    print_note(f"removed webhook {webhook}")


@webhooks.command()
@click.argument("webhook")
@click.option(
    "--timeout", "wait_s", type=click.FloatRange(min=0), default=TEST_WAIT_S, help="Seconds to wait for the result."
)
@json_option
@gateway_options
def test(webhook: str, wait_s: float, as_json: bool, gateway: GatewayOptions) -> None:
    """Send a test to a webhook, through a worker, and wait for the result. The exit code is 1 if it was not taken."""
    with gateway.connect() as client:
        delivery = _await_delivery(client, webhook, client.test_webhook(webhook), wait_s)
    if as_json:
        print_json(delivery)
    if delivery.state != "sent":
        raise CommandFailed(
            f"the receiver has not taken the test: {delivery.reason or 'no worker has tried yet'};"
            f" see 'magent2 webhooks deliveries {webhook}'"
        )
    print_note("the receiver has taken the test")


def _await_delivery(client: Client, webhook: str, delivery: WebhookDelivery, wait_s: float) -> WebhookDelivery:
    """Return the delivery after its first attempt, or as it is after the time."""
    deadline = time.monotonic() + wait_s
    while delivery.state == "waiting" and not delivery.tries and time.monotonic() < deadline:
        time.sleep(TEST_POLL_S)
        delivery = next((one for one in client.webhook_deliveries(webhook) if one.id == delivery.id), delivery)
    return delivery


@webhooks.command()
@click.argument("webhook")
@click.option("--state", help="List only those in this state: waiting, sent, dead, unknown or dropped.")
@json_option
@gateway_options
def deliveries(webhook: str, state: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """List the last notifications of a webhook and what became of them, oldest first."""
    with gateway.connect() as client:
        found = client.webhook_deliveries(webhook, state)
    if as_json:
        print_json(list(found))
        return
    rows = [
        (one.id, one.type, one.conversation_id or "-", one.state, one.tries, shortened(one.reason)) for one in found
    ]
    print_table(("ID", "EVENT", "CONVERSATION", "STATE", "FAILED", "REASON"), rows)


@webhooks.command()
@click.argument("webhook")
@click.argument("delivery")
@gateway_options
def retry(webhook: str, delivery: str, gateway: GatewayOptions) -> None:
    """Send a notification again that is dead, or whose outcome is unknown."""
    with gateway.connect() as client:
        client.retry_webhook_delivery(webhook, delivery)
    print_note(f"notification {delivery} is sent again")
