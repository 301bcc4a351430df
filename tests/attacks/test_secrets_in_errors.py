"""Errors of foreign code that contain secrets: no user and no model sees their text, and no log keeps a secret."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from agents import function_tool
from agents.testing import function_call

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Claim, Operation, Topics, Write
from magent2.connectors.delivery_attempt import DeliveryAttempt
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records, read_outbox
from magent2.directory.connectors import Capabilities, find_connector, register_connector
from magent2.errors import BusUnavailable, StorageFull, ToolError
from magent2.failures import MASK, mask_secrets
from magent2.gateway.app import create_app
from magent2.models.address import relay_agent
from magent2.models.envelope import MessageEnvelope
from magent2.roster.spec import McpServer
from magent2.runner.build import function_tool_of
from magent2.runner.config import RunnerConfig
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sandbox.monty import MontySandbox
from magent2.sessions.store import create_session
from magent2.telemetry.logs import setup_logging
from magent2.telemetry.observation import RunObserver
from magent2.tools import mcp
from magent2.tools.default_tools import standard_tools
from magent2.tools.mcp import McpServers
from magent2.tools.registry import tool
from magent2.worker.lane_run import LaneRun, Outcome
from tests.support.audit import whole_log
from tests.support.blocks import Blocks, patient_sandbox
from tests.support.engine_wrappers import EngineWrapper
from tests.support.fake_receivers import FakeConnector
from tests.support.gateway import app_client, message
from tests.support.journaled_runs import ToolCallScript, script_call, tool_steps, work
from tests.support.keys import ACCESS
from tests.support.model_server import ModelServer, Reply
from tests.support.spans import recorded_spans
from tests.support.team import DESK, ask_tool, replace_tools, roster, team_on
from tests.support.team import work as work_on_team
from tests.support.worker_fixture import claim_one, dead_letters, errors, outputs, run_worker, send, stream, until

PASSWORD = "Tr0ub4dor" + "andmore"  # pragma: allowlist secret
DATABASE = f"postgres://admin:{PASSWORD}@db.internal:5432/shop"
FAILURE_ID = re.compile(r"failure id ([0-9a-f]{12})")

# Each of these contains PASSWORD in the form of a secret.
SHAPES = {
    "url": f"cannot connect to {DATABASE}",
    "url without a user": f"redis://:{PASSWORD}@cache:6379/0 refused",
    "url with an @ in the password": f"amqp://app:p@{PASSWORD}@mq/vhost",
    "url with a / in the password": f"mysql://app:p/{PASSWORD}@db/shop",
    "token as the user of a url": f"fatal: https://{PASSWORD}@github.example/x.git",
    "bearer": f"401 for Authorization: Bearer {PASSWORD}1",
    "bearer alone": f"sent bearer {PASSWORD}1",
    "basic": f"'Authorization': 'Basic {PASSWORD}'",
    "openai": f"Incorrect API key provided: sk-proj-{PASSWORD}",
    "anthropic": f"sk-ant-api03-{PASSWORD}",
    "own key": f"mk_0123456789ab_{PASSWORD}",
    "password pair": f"login failed (user=app, password={PASSWORD})",
    "password in json": json.dumps({"user": "app", "db_password": PASSWORD}),
    "password in a repr": repr({"passwd": PASSWORD, "host": "db"}),
    "quoted with spaces": f'PASSWORD="{PASSWORD} and more" host=db',
    "api key pair": f"GET /v1?api_key={PASSWORD}&page=2",
    "client secret": f"client_secret: {PASSWORD}",
    "aws secret": f"aws_secret_access_key = {PASSWORD}",
    "azure": f"DefaultEndpointsProtocol=https;AccountKey={PASSWORD}==;Endpoint=x",
    "github": f"ghp_{PASSWORD}0123456789",
    "jwt": f"eyJhbGciOi.{PASSWORD}.c2ln",
    "private key": f"-----BEGIN PRIVATE KEY-----\n{PASSWORD}\n-----END PRIVATE KEY-----",  # pragma: allowlist secret
    "private key that is cut": f"-----BEGIN PRIVATE KEY-----\n{PASSWORD}",  # pragma: allowlist secret
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_every_known_shape_is_masked_once(text: str) -> None:
    masked = mask_secrets(text)

    assert PASSWORD not in masked
    assert MASK in masked
    assert mask_secrets(masked) == masked


def test_an_access_key_of_aws_is_masked() -> None:
    assert mask_secrets("AKIA" + "IOSFODNN7EXAMPLE denied") == f"{MASK} denied"


@pytest.mark.parametrize(
    "text",
    [
        "the password is wrong",
        "input_tokens=5 output_tokens=7",
        "no file /srv/data/report.csv, see https://example.com:8443/help?to=a@b.example",
        "redis://127.0.0.1:6379/0 does not answer",
        "the task-runner is risk-averse",
        "Bearer authentication is required",
        "12:03:04 WARNING magent2.bus: waiting",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "piece", ["://a:b", "password ", "password='", "eyJ", "bearer ", "a@", "sk-", "1", "-----BEGIN "]
)
def test_no_text_makes_the_masking_slow(piece: str) -> None:
    begun = time.process_time()

    mask_secrets(piece * 100_000)

    assert time.process_time() - begun < 30  # quadratic time would take hours


# --- what a run shows


class Logs:
    """The log of the process, as text and as JSON lines."""

    def __init__(self) -> None:
        self.text, self.json = io.StringIO(), io.StringIO()

    @property
    def all(self) -> str:
        return self.text.getvalue() + self.json.getvalue()

    def lines(self, text: str) -> list[Mapping[str, Any]]:
        parsed = map(json.loads, self.json.getvalue().splitlines())
        return [line for line in parsed if line["text"] == text]


@pytest.fixture
def logs() -> Iterator[Logs]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    written = Logs()
    handlers = []
    for log_format, target in (("text", written.text), ("json", written.json)):
        setup_logging(log_format, "INFO", target)
        handlers += root.handlers
    root.handlers[:] = handlers
    yield written
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


@pytest.fixture
def sandbox() -> MontySandbox:
    return patient_sandbox()


def on_the_log(bus: Engine, *without: str) -> str:
    """All records of all topics, except those of the given kinds."""
    topics = [info.topic for info in bus.call(Topics("", limit=1000)).topics]
    kept = [topic for topic in topics if topic.partition(":")[0] not in without]
    return json.dumps([[dict(record.payload) for record in whole_log(bus, topic)] for topic in kept], default=str)


def check_hidden(logs: Logs, *shown: object) -> None:
    """Check that nothing contains the secret, and that the operator finds every failure id that was shown."""
    for text in (logs.all, *map(str, shown)):
        assert PASSWORD not in text
    ids = {found for text in shown for found in FAILURE_ID.findall(str(text))}
    assert ids
    for found in ids:
        assert f"failure_id={found}" in logs.text.getvalue()
        assert f'"failure_id":"{found}"' in logs.json.getvalue()


@function_tool
def lookup() -> str:
    """Look something up."""
    raise RuntimeError(f"cannot connect to {DATABASE}")


@tool
def inventory() -> str:
    """Count the stock."""
    raise RuntimeError(f"cannot connect to {DATABASE}")


@tool
def order(number: int) -> str:
    """Look up an order."""
    raise ToolError(f"there is no order {number}; ask for its number")


@pytest.mark.parametrize("made", [lookup, function_tool_of(inventory.definition())], ids=["of the SDK", "of ours"])
async def test_an_error_of_a_tool_is_hidden_from_the_model_and_the_user_and_logged_once(
    bus: MemoryBus, logs: Logs, made: Any
) -> None:
    script = script_call(made.name)
    send(bus, "how many?")

    assert await work(bus, script.agent(made)) is Outcome.ANSWERED

    (line,) = logs.lines("a tool failed")
    assert (line["level"], line["tool"]) == ("WARNING", made.name)
    assert "Traceback" in line["trace"]
    assert "RuntimeError: cannot connect to postgres://***@db.internal" in line["trace"]
    assert line["error"] == f"RuntimeError: cannot connect to postgres://{MASK}@db.internal:5432/shop"
    assert tool_steps(bus)[-1][1] == f"RuntimeError: {script.results['c1']}"
    assert script.results["c1"].startswith(f"{made.name} failed; the operator's log has the cause (failure id ")
    check_hidden(logs, script.results["c1"], on_the_log(bus))
    assert "db.internal" not in on_the_log(bus)


async def test_a_tool_error_is_shown_as_it_is(bus: MemoryBus, logs: Logs) -> None:
    script = script_call("order", number=7)
    send(bus, "where is it?")

    await work(bus, script.agent(function_tool_of(order.definition())))

    assert script.results["c1"] == "there is no order 7; ask for its number"
    assert tool_steps(bus)[-1] == ("error", "ToolError: there is no order 7; ask for its number")
    assert logs.lines("a tool failed") == []


async def test_the_cause_of_a_tool_error_is_logged(bus: MemoryBus, logs: Logs) -> None:
    @tool
    def stock() -> str:
        """Count the stock."""
        try:
            raise ConnectionError(DATABASE)
        except ConnectionError as error:
            raise ToolError("the shop is closed") from error

    script = script_call("stock")
    send(bus, "how many?")

    await work(bus, script.agent(function_tool_of(stock.definition())))

    (line,) = logs.lines("a tool failed")
    assert script.results["c1"] == "the shop is closed"
    assert "ConnectionError" in line["trace"]
    assert PASSWORD not in logs.all


async def test_a_formatter_of_a_tool_shows_what_it_wants_without_secrets(bus: MemoryBus, logs: Logs) -> None:
    @function_tool(failure_error_function=lambda context, error: f"sorry: {error}")
    def stock() -> str:
        """Count the stock."""
        raise RuntimeError(DATABASE)

    script = script_call("stock")
    send(bus, "how many?")

    await work(bus, script.agent(stock))

    assert script.results["c1"].startswith("sorry: postgres://***@")
    assert len(logs.lines("a tool failed")) == 1
    check_hidden(logs, on_the_log(bus))


async def test_a_tool_that_ends_its_run_leaves_the_cause_to_operators(bus: MemoryBus, logs: Logs) -> None:
    @function_tool(failure_error_function=None)
    def stock() -> str:
        """Count the stock."""
        raise RuntimeError(DATABASE)

    script = script_call("stock")
    send(bus, "how many?")

    assert await work(bus, script.agent(stock)) is Outcome.BURIED

    (letter,) = dead_letters(bus)
    assert f"postgres://{MASK}@db.internal" in letter["reason"]
    assert errors(bus)[0]["message"] == stream(bus)[-1]["reason"]
    assert len(logs.lines("a tool failed")) == 1
    check_hidden(logs, on_the_log(bus))
    assert "db.internal" not in on_the_log(bus, "dead")


async def test_a_block_sees_the_type_of_a_tools_error_and_a_plain_text(
    bus: MemoryBus, logs: Logs, sandbox: MontySandbox
) -> None:
    @tool
    def stock() -> str:
        """Count the stock."""
        raise KeyError(DATABASE)

    code = "try:\n    stock()\nexcept LookupError as error:\n    print('caught', error)\ninventory()"
    block = Blocks(sandbox, code, stock, inventory)
    send(bus, "how many?")

    await work(bus, block.made)
    await sandbox.aclose()

    assert "caught" in block.text
    assert "line 5" in block.text  # the traceback of the model's own code stays
    assert len(set(FAILURE_ID.findall(block.text))) == 2
    assert len(logs.lines("a tool failed")) == 2
    check_hidden(logs, block.text, on_the_log(bus))
    assert "db.internal" not in on_the_log(bus) + block.text


async def test_a_tool_run_without_a_model_answers_with_a_plain_failure(bus: MemoryBus, logs: Logs) -> None:
    tools = standard_tools()
    tools.register(inventory)
    desk = replace_tools(DESK, "inventory")
    with ModelServer([]) as server:
        team = team_on(server.url, roster(desk), tools=tools)
        ask_tool(bus, "inventory", {})
        assert await work_on_team(bus, team) is Outcome.ANSWERED
        await team.aclose()

    (text,) = outputs(bus)
    assert text.startswith("RuntimeError: inventory failed; the operator's log has the cause")
    check_hidden(logs, on_the_log(bus))


async def test_a_provider_that_quotes_the_key_is_not_quoted(bus: MemoryBus, logs: Logs) -> None:
    key = f"sk-proj-{PASSWORD}"
    with ModelServer([Reply(f"Incorrect API key provided: {key}", status=401)]) as server:
        config = RunnerConfig(model="any-model", api_key=key, base_url=server.url)
        runner = OpenAIAgentsRunner(config=config)
        send(bus, "hello")
        assert await work(bus, runner) is Outcome.BURIED
        await runner.leave_loop()

    (line,) = logs.lines("a run failed")
    assert "AuthenticationError" in line["error"]
    assert "Incorrect API key provided: ***" in line["error"]
    assert "check the key of the provider: OPENAI_API_KEY" in errors(bus)[0]["message"]
    assert "Incorrect" not in on_the_log(bus, "dead")
    check_hidden(logs, on_the_log(bus))


class FailingRunner:
    """A runner of an application."""

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[Any]:
        raise RuntimeError(f"cannot connect to {DATABASE}")


async def test_an_error_of_a_runner_is_hidden_from_the_conversation(bus: MemoryBus, logs: Logs) -> None:
    send(bus, "hello")

    assert await LaneRun(bus, claim_one(bus), FailingRunner()).work() is Outcome.BURIED

    (shown,) = [event["message"] for event in errors(bus)]
    assert shown.startswith("RuntimeError: the run failed; the operator's log has the cause (failure id ")
    assert MASK in dead_letters(bus)[0]["reason"]
    check_hidden(logs, on_the_log(bus))
    assert "db.internal" not in on_the_log(bus, "dead")


async def test_no_span_has_the_text_of_an_error(bus: MemoryBus, logs: Logs) -> None:
    script = ToolCallScript(function_call("lookup", {}, call_id="c1"))
    send(bus, "how many?")
    with recorded_spans(content=True) as spans:
        observer = RunObserver(tracer=spans.tracer)
        runner = OpenAIAgentsRunner(script.agent(lookup))
        await LaneRun(bus, claim_one(bus), runner, observer=observer).work()
        exported = "".join(span.to_json() for span in spans.all)

    assert "execute_tool lookup" in spans.names
    assert "db.internal" not in exported


class FailingReads(EngineWrapper):
    """A bus whose driver fails when the history of a conversation is read."""

    def answer(self, operation: Operation[Any]) -> Any:
        if "history:" in str(operation) and not isinstance(operation, Write):
            raise RuntimeError(f"cannot connect to {DATABASE}")
        return super().answer(operation)


async def test_an_unexpected_error_of_the_store_is_hidden_from_the_conversation(
    bus: MemoryBus, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magent2.mail.lane_loop.LANE_FAILURES_MAX", 1)

    driver = FailingReads(bus)
    send(bus, "hello")

    async with run_worker(driver, FailingRunner()):
        await until(lambda: bool(dead_letters(bus)))

    assert MASK in dead_letters(bus)[0]["reason"]
    check_hidden(logs, errors(bus), on_the_log(bus))
    assert "db.internal" not in on_the_log(bus, "dead")


# --- connectors, MCP servers, HTTP


async def test_an_error_of_a_connector_is_hidden_from_the_conversation_and_the_outbox(
    bus: MemoryBus, logs: Logs
) -> None:
    run_sync(bus, create_session, "one", "user:ann")
    run_sync(bus, register_connector, "hook", "kept", Capabilities())
    connector = run_sync(bus, find_connector, "hook").state
    sent = OutgoingMessage("m-1", "hook", "ann", "one", "Ada", "hi", "2026-01-01T00:00:00+00:00")
    bus.call(Append(records=queue_records(sent, connector)))
    receiver = FakeConnector(failures=[RuntimeError(DATABASE)])

    (lane,) = bus.call(Claim(worker="r", agents=(relay_agent("hook"),), limit=1, lease_s=60)).lanes
    await DeliveryAttempt(bus, lane, lambda _: receiver).work()

    (item,) = run_sync(bus, read_outbox, "hook")
    assert item.state == "unknown"
    assert "the connector failed" in errors(bus)[0]["message"]
    check_hidden(logs, errors(bus), on_the_log(bus))


MCP_PROGRAM = f"""
from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
server = MCPServer("shelf", log_level="CRITICAL")

@server.tool()
def protocol() -> str:
    raise MCPError(-32602, "no access to {DATABASE}")

@server.tool()
def result() -> str:
    raise ToolError("no access to {DATABASE}")

server.run()
"""


@pytest.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[McpServers]:
    monkeypatch.setattr(mcp, "CONNECT_MAX_S", 60.0)  # the program imports a good deal first
    program = tmp_path / "server.py"
    program.write_text(MCP_PROGRAM)
    servers = McpServers({"shelf": McpServer("shelf", command=(sys.executable, str(program)))})
    yield servers
    await servers.aclose()


async def test_errors_of_an_mcp_server_are_masked_and_those_of_its_protocol_are_hidden(
    bus: MemoryBus, logs: Logs, servers: McpServers
) -> None:
    tools = await servers.tools({"shelf": None})
    assert [made.name for made in tools] == ["shelf__protocol", "shelf__result"]
    calls = [function_call(made.name, {}, call_id=made.name) for made in tools]
    script = ToolCallScript(*calls)
    send(bus, "read it")

    await work(bus, script.agent(*tools))

    assert "(failure id " in script.results["shelf__protocol"]
    assert "db.internal" not in script.results["shelf__protocol"]
    assert "no access to" in script.results["shelf__result"]
    check_hidden(logs, *script.results.values(), on_the_log(bus))


class BrokenBus(EngineWrapper):
    """A bus whose driver raises an error with a secret."""

    error: Exception = RuntimeError(f"cannot connect to {DATABASE}")

    def answer(self, operation: Operation[Any]) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError(f"cannot connect to {DATABASE}"), 500, "internal"),
        (BusUnavailable(f"{DATABASE} does not answer"), 503, "bus_unavailable"),
        (StorageFull(f"no space left for {DATABASE}"), 507, "storage_full"),
    ],
    ids=["unexpected", "unavailable", "full"],
)
@pytest.mark.parametrize("path", ["/send", "/api/sdk/sessions", "/ready"])
async def test_a_problem_document_has_a_failure_id_and_no_cause(
    bus: MemoryBus, logs: Logs, error: Exception, status: int, code: str, path: str
) -> None:
    broken = BrokenBus(bus)
    broken.error = error
    access = ACCESS if path == "/ready" else None  # an administrator is told the cause
    async with app_client(create_app(broken, access=access)) as client:
        answer = await (client.post(path, json=message()) if path == "/send" else client.get(path))

    if path == "/ready" and status != 500:
        status, code = 503, "not_ready"
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "db.internal" not in answer.text
    assert f"postgres://{MASK}@db.internal" in logs.all
    check_hidden(logs, answer.text)


def test_lines_of_other_libraries_are_masked_in_both_formats(logs: Logs) -> None:
    settings = {"db_password": PASSWORD, "hosts": [DATABASE]}
    fields = {"dsn": DATABASE, "settings": settings, "cause": OSError(DATABASE)}
    try:
        raise RuntimeError(DATABASE)
    except RuntimeError:
        logging.getLogger("library").exception("cannot open %s", DATABASE, extra=fields)

    (line,) = map(json.loads, logs.json.getvalue().splitlines())
    assert line["settings"]["db_password"] == MASK
    assert "Traceback" in line["trace"]
    assert "Traceback" in logs.text.getvalue()
    assert PASSWORD not in logs.all
