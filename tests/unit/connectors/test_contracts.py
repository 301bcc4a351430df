"""Runs the conformance suite on every connector."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import pytest

from magent2.connectors.builtin import KINDS, ConsoleConnector, capabilities_of, make_connector
from magent2.connectors.webhook import WebhookConnector
from magent2.directory.connectors import ConnectorRegistration
from magent2.errors import SettingsError
from tests.contracts.connector import ConnectorContract, ConnectorSetup
from tests.support.fake_receivers import answer, webhook_receiver

SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
CONFIGS = {"console": {}, "webhook": {"url": "https://example.com/", "secret": SECRET, "takes_key": True}}


class TestConsole(ConnectorContract):
    @pytest.fixture
    async def setup(self) -> ConnectorSetup:
        out = io.StringIO()

        def arrived() -> list[str]:
            return [line.partition("] ")[2] for line in out.getvalue().splitlines() if line.startswith("[")]

        return ConnectorSetup(ConsoleConnector(out), arrived, [out.close])


class TestWebhook(ConnectorContract):
    @pytest.fixture
    async def setup(self) -> AsyncIterator[ConnectorSetup]:
        async with webhook_receiver() as receiver:
            config = {"url": receiver.url, "secret": SECRET, "allow_private": True}
            connector = WebhookConnector(config)
            bad = [None, answer("500 No"), answer("404 No"), answer("429 No")]
            breaks = [lambda said=said: receiver.answers.append(said) for said in bad]
            yield ConnectorSetup(connector, lambda: [post.text for post in receiver.posts], [*breaks])
            await connector.aclose()


def test_what_is_stored_of_a_connector_is_what_it_can_do() -> None:
    assert set(CONFIGS) == set(KINDS)
    for kind, config in CONFIGS.items():
        registered = ConnectorRegistration("x", kind, capabilities_of(kind, config), config)
        assert make_connector(registered).capabilities == registered.capabilities


@pytest.mark.parametrize(("kind", "config"), [("pigeon", {}), ("console", {"x": 1}), ("webhook", {})])
def test_what_cannot_be_set_up_is_refused(kind: str, config: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        capabilities_of(kind, config)
