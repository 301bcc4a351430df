"""Constants have one home: a value that two modules must agree on is defined once and imported."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import magent2
from tests.support.source import parse_module

PACKAGE = Path(magent2.__file__).parent

# Names that several modules use for values of their own. Nothing breaks if one of them changes alone.
SHARED_NAMES = {
    "AGENT_EXAMPLE": "examples of two schemas of the API",
    "AGENT_PREFIX": "of topics; of addresses",
    "BODY_MAX_BYTES": "that a webhook sends; that a gateway accepts",
    "CLOSED": "the error of a lane writer; of a Redis connection",
    "COLUMNS": "of the table of records on SQLite; on PostgreSQL",
    "COMMANDS": "of the command line; of control mail",
    "CONCURRENCY": "of a relay; of a worker",
    "CONNECT_TIMEOUT_S": "of Redis, PostgreSQL and the HTTP client",
    "CONTENT_MAX_CHARS": "of a message between agents in a process; of a trace",
    "DEFAULT_AGENT": "that a command talks to; that a runner without a team is",
    "DEFAULT_FILE": "of the log; of the built-in team",
    "DEFAULT_URL": "of Redis; of the gateway",
    "DELAY_MAX_S": "of mail; between two tries to reach a server",
    "DRAIN_S": "of a relay, a gateway and a worker",
    "EVENTS_MAX": "of a page of events; of the search for the outcome of a message",
    "FILE_MAX_BYTES": "of a program, an agents file and an attachment",
    "GROUP_MAX": "operations per commit on SQLite; on PostgreSQL",
    "HEAD_MAX_BYTES": "of a topic's head; of a request's head",
    "HOPS_MAX": "of proxies; of agents that pass a message on",
    "ID_BYTES": "of API keys; of the demo model's calls",
    "INSTRUCTIONS_MAX_BYTES": "of an agent in a team; of an agent from variables",
    "KINDS": "of connectors; of events",
    "LEASE_S": "of a relay; of a worker",
    "MIGRATIONS": "of a log on SQLite; on PostgreSQL",
    "MODEL_NAME": "of the demo model; of the local model",
    "NAME_MAX_CHARS": "of topics, agents in a process, spans and functions of models",
    "NOTIFICATION_MAX_BYTES": "on Redis; on PostgreSQL",
    "PAGE": "how much a module reads at a time",
    "PATH_MAX_CHARS": "in the audit log; of an attachment",
    "PAUSE_S": "of the demonstration; between two updates of a session list",
    "POLL_S": "of a SQLite file; of a v1 bus",
    "READS": "operations of SQLite; of PostgreSQL",
    "REFUSALS": "of the log; of a model",
    "REPLY_TIMEOUT_S": "of Redis; of PostgreSQL",
    "REPLY_TO": "a field of events; the description of an argument",
    "RESULT_MAX_CHARS": "on a terminal; in an event",
    "RETRY_FOR_S": "of engines on a server, a chat and a command",
    "RETRY_OF": "a header of retried dead letters; a field of the metadata of a message that a user sends again",
    "RETRY_S": "of a file lock, a stream and an MCP server",
    "ROUTE_MAX_S": "that a request waits; that the supervisor's model may take, which is less",
    "RUN_FAILED": "why keywords decided; the code of an error event",
    "SCHEMA": "of a log on SQLite; on PostgreSQL",
    "SCRUB_MAX_BYTES": "of a file; of the tables on PostgreSQL",
    "SEND_MAX_S": "of a webhook; of a slow reader",
    "SWEEP_PAGE": "how much a module reads at a time",
    "SWEEP_S": "how often a loop looks without a notification",
    "TABLES": "of a log on SQLite; on PostgreSQL",
    "TEXT_MAX_CHARS": "that a gateway accepts, that keywords search, that a tool sends",
    "THREAD_NAME": "of two kinds of threads",
    "TITLE_MAX_CHARS": "that a user may set; that is made from the first message",
    "TOOL": "of a command, the demo script and the role of events",
    "VALUE_MAX_CHARS": "in a fault of an agents file; of the result of a block",
    "VERSION": "of webhooks; of the functions on PostgreSQL",
    "WRITES": "operations of SQLite; of PostgreSQL",
    "WAIT_MAX_S": "of a request; of a tool",
}


def constants(module: Path) -> Iterator[str]:
    """The public constants that a module assigns."""
    for statement in parse_module(module.read_text()).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and node.id.isupper() and len(node.id) > 1 and node.id[0] != "_":
                    yield node.id


def test_a_constant_has_one_home() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in sorted(PACKAGE.rglob("*.py")):
        for name in constants(module):
            homes[name].append(str(module.relative_to(PACKAGE)))

    repeated = {name: files for name, files in homes.items() if len(files) > 1}

    assert {name: files for name, files in repeated.items() if name not in SHARED_NAMES} == {}
    assert [name for name in SHARED_NAMES if name not in repeated] == [], "remove these from SHARED_NAMES"
