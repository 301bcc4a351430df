"""A whole service in separate processes: gateways and workers, with injected faults."""

from __future__ import annotations

import http.client
import os
import random
import signal
import uuid
from collections import defaultdict
from collections.abc import Callable

from magent2.bus.interface import Engine
from magent2.client import Client
from tests.support.audit import whole_log
from tests.support.http_client.audit import acceptance_findings
from tests.support.ports import quiet_port as quiet_port  # noqa: PLC0414  re-exported: tests import it from here
from tests.support.processes import Child, ProcessGroup
from tests.support.service_pool import ServicePool
from tests.support.waiting import eventually
from tests.support.worker_fixture import AGENT

GATEWAY = "tests.integration.children.gateway"
TOKEN = "a-token-for-tests-only"  # pragma: allowlist secret
START_DEADLINE_S = 60.0


class Service(ServicePool):
    """Workers for the mail of one agent, and gateways that restart at the same address."""

    def __init__(self, url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random) -> None:
        super().__init__(url, engine, process_group, rng)
        self.gateways: dict[int, Child] = {}
        self.accepted: dict[str, list[tuple[str, int]]] = defaultdict(list)

    @property
    def addresses(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.gateways]

    def accept(self, conversation: str, envelope_id: str, text: str, seq: int) -> None:
        """Record an acknowledged message."""
        self.sent[conversation].append((envelope_id, text))
        self.accepted[conversation].append((envelope_id, seq))

    def send(self, conversation: str, text: str) -> None:
        """Send a message through a gateway that is up."""
        envelope_id = str(uuid.uuid4())
        with Client(self.addresses[0], TOKEN) as client:
            sent = client.send(AGENT, text, conversation_id=conversation, envelope_id=envelope_id)
        self.accept(conversation, envelope_id, text, sent.seq)

    # --- gateways

    def open_gateway(self, port: int | None = None) -> int:
        chosen = quiet_port() if port is None else port
        place = ["--bus", self._url, "--host", "127.0.0.1", "--port", str(chosen), "--token", TOKEN]
        self.gateways[chosen] = self._process_group.spawn(GATEWAY, arguments=place)
        return chosen

    def await_ready(self) -> None:
        super().await_ready()
        self.await_gateways()

    def await_gateways(self) -> None:
        """Wait until all answer; one that has ended by itself is shown with its last words."""
        for port in self.gateways:
            self.await_gateway(port)

    def await_gateway(self, port: int) -> None:
        def answers() -> bool:
            self.gateways[port].check_alive()
            return answers_at(port)

        eventually(answers, START_DEADLINE_S)

    def kill_gateway(self, meanwhile: Callable[[], object] = bool) -> None:
        """Kill a gateway that is up and has something to do, and start it again where it was."""
        victim = self._rng.choice(sorted(self.gateways))
        self.await_gateway(victim)
        meanwhile()
        self.gateways[victim].kill()
        self.happened["gateway kills"] += 1
        self.open_gateway(victim)

    def close_gateways(self) -> None:
        """Drain them: streams are told that they end."""
        for child in self.gateways.values():
            os.kill(child.pid, signal.SIGTERM)
        for child in self.gateways.values():
            assert child.finish() == 0, child.errors()

    # --- the audit

    def findings(self) -> list[str]:
        return super().findings() + [
            f"{conversation}: {finding}"
            for conversation, accepted in self.accepted.items()
            for finding in acceptance_findings(accepted, whole_log(self.engine, f"stream:{conversation}"))
        ]


def answers_at(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
