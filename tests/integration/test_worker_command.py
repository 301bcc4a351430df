"""`python -m magent2.worker` from start to exit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magent2.bus.operations import Lanes, Workers
from magent2.bus.sqlite import SqliteBus
from magent2.mail.delivery import SendOptions
from tests.support.forked_processes import start_module
from tests.support.model_server import ModelServer, Reply
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually
from tests.support.worker_fixture import AGENT, errors, outputs, send, stream

WORKER = "magent2.worker"
STUCK = "tests.integration.children.stuck_runner"
START_DEADLINE_S = 60.0  # a cold start imports the SDK, which takes long on a busy machine
END_DEADLINE_S = 60.0
# A provider that fails repeatedly is reported as suspended, in a line of its own. With this delay it is called once.
UNAVAILABLE = Reply(status=503, retry_after="3600")
UNSET = ("OPENAI_API_KEY", "AGENT_NAME", "AGENT_MODEL", "AGENT_TOOLS", "MAGENT2_BUS_URL", "REDIS_URL")

ENDLESS_TOOL = """
import threading
from pathlib import Path

def endless() -> str:
    "Wait for ever."
    Path({begun!r}).touch()
    threading.Event().wait()
"""
ENDLESS_TEAM = f"""
[[scenario]]
id = "one"

[[scenario.agent]]
name = "{AGENT}"
tools = ["endless"]

[tools]
endless = "endless_tool:endless"
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def bus(url: str) -> Iterator[SqliteBus]:
    bus = SqliteBus(url.removeprefix("sqlite:///"))
    yield bus
    bus.close()


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, bus_url: str = url, cold: bool = False, **variables: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if name not in UNSET}
        chosen = ("--bus", bus_url, *arguments)
        process = start_module(WORKER, chosen, {**kept, **variables}, text=True, cold=cold)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=END_DEADLINE_S)
    return process.returncode, out, err


def serves(bus: SqliteBus) -> bool:
    return bool(bus.call(Workers()))


def test_it_prints_its_setup_answers_and_exits_on_sigterm(start: Start, bus: SqliteBus, url: str) -> None:
    send(bus, "hello", recipient="agent:general")
    process = start(cold=True)
    eventually(lambda: outputs(bus) == ["hello"], START_DEADLINE_S)
    process.send_signal(signal.SIGTERM)

    code, out, _ = ended(process)

    assert code == 0
    assert out.splitlines() == [
        "agents   supervisor, general, sales, support",
        "model    echo, because OPENAI_API_KEY is not set",
        f"bus      {url}",
    ]
    assert not serves(bus)


def test_the_agent_can_be_named_by_option_or_variable(start: Start, bus: SqliteBus) -> None:
    send(bus, "for Bob", "c1", recipient="agent:Bob")
    send(bus, "for Cid", "c2", recipient="agent:Cid")
    start(AGENT_NAME="Bob")
    start("--agent", "Cid", AGENT_NAME="Bob")

    eventually(lambda: (outputs(bus, "c1"), outputs(bus, "c2")) == (["for Bob"], ["for Cid"]), START_DEADLINE_S)


def test_without_a_key_the_model_of_the_environment_is_replaced_by_echo(start: Start, bus: SqliteBus) -> None:
    send(bus, "hello", recipient="agent:Dev")
    process = start(AGENT_NAME="Dev", AGENT_MODEL="gpt-4o-mini")
    eventually(lambda: outputs(bus) == ["hello"] or process.poll() is not None, START_DEADLINE_S)
    process.send_signal(signal.SIGTERM)

    code, out, err = ended(process)

    assert (code, out.splitlines()[:2]) == (
        0,
        ["agents   Dev", "model    echo, because OPENAI_API_KEY is not set"],
    )
    assert "AGENT_MODEL is not used, because OPENAI_API_KEY is not set" in err


def test_the_demo_model_answers_without_a_key(start: Start, bus: SqliteBus) -> None:
    send(bus, "hello", recipient="agent:general")
    start("--model", "demo")

    eventually(lambda: outputs(bus), START_DEADLINE_S)
    assert {"token", "output"} <= {event["event"] for event in stream(bus)}


@pytest.mark.parametrize("level", ["warning", "info"])
@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("reply", [Reply(status=400), UNAVAILABLE], ids=["refused", "unavailable"])
def test_a_failed_attempt_is_one_line_with_its_cause(
    start: Start, bus: SqliteBus, reply: Reply, log_format: str, level: str
) -> None:
    send(bus, "hello", recipient="agent:general")
    with ModelServer(lambda _: reply) as model:
        process = start("--log-format", log_format, **model_variables(model), MAGENT2_LOG_LEVEL=level)
        eventually(lambda: errors(bus), START_DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)

    # What the worker says at info is about other things, such as its limits and sweeps. Lines of libraries count.
    others = ("worker is draining", " INFO magent2.", '"level":"INFO","logger":"magent2.')
    failed = [line for line in err.splitlines() if not any(text in line for text in others)]
    assert code == 0
    assert len(failed) == len(errors(bus)), err
    assert all("a run failed" in line and str(reply.status) in line for line in failed), err


def test_the_traceback_of_a_failed_attempt_is_logged_at_debug(start: Start, bus: SqliteBus) -> None:
    send(bus, "hello", recipient="agent:general")
    with ModelServer(lambda _: Reply(status=400)) as model:
        process = start(**model_variables(model), MAGENT2_LOG_LEVEL="debug")
        eventually(lambda: errors(bus), START_DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        _, _, err = ended(process)

    assert "Traceback (most recent call last)" in err


def model_variables(model: ModelServer) -> dict[str, str]:
    return {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": model.url}  # pragma: allowlist secret


def test_ctrl_c_drains_like_sigterm(start: Start, bus: SqliteBus) -> None:
    process = start()
    eventually(lambda: serves(bus), START_DEADLINE_S)
    process.send_signal(signal.SIGINT)

    code, _, err = ended(process)

    assert code == 0
    assert err.splitlines() == [
        "magent2: worker is draining: running work has 30 s to finish; press Ctrl-C again to exit immediately"
    ]


def test_the_second_signal_exits_immediately_and_the_mail_stays_pending(
    url: str, bus: SqliteBus, process_group: ProcessGroup
) -> None:
    send(bus, "hello")
    child = process_group.spawn(STUCK, url=url)
    assert child.next_report() == {"begun": True}
    os.kill(child.pid, signal.SIGTERM)
    eventually(lambda: "worker is draining" in child.errors())
    os.kill(child.pid, signal.SIGTERM)

    assert child.finish() == 1
    assert bus.call(Lanes(AGENT))[0].pending == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["--bus", "nowhere"], {}, "is not a bus URL"),
        (["--agent", " "], {}, "agent name"),
        (["--concurrency", "0"], {}, "concurrency must be between"),
        (["--model", "gpt-x"], {}, "needs OPENAI_API_KEY"),
        ([], {"AGENT_TOOLS": "juggle"}, "juggle"),
        ([], {"AGENT_INSTRUCTIONS": "a", "AGENT_INSTRUCTIONS_FILE": "b"}, "both set"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(
    start: Start, arguments: list[str], variables: dict[str, str], words: str
) -> None:
    code, _, err = ended(start(*arguments, **variables))

    assert code == 2
    assert err.startswith("magent2: ")
    assert words in err
    assert len(err.splitlines()) == 1


def test_an_unreachable_bus_is_reported_in_one_line_without_the_password(start: Start) -> None:
    address = "redis://:open-sesame@127.0.0.1:1/0"  # pragma: allowlist secret

    code, out, err = ended(start(bus_url=address))

    assert code == 1
    assert len(err.splitlines()) == 1
    assert "does not answer" in err
    assert "open-sesame" not in out + err


def test_an_agent_named_like_a_conversation_is_reported_in_one_line(start: Start, bus: SqliteBus) -> None:
    send(bus, "hello", "general", recipient="agent:Bob")

    code, _, err = ended(start(AGENT_NAME="general"))

    assert code == 1
    (line,) = [line for line in err.splitlines() if line.startswith("magent2:")]
    assert "'general'" in line
    assert "give the agent another name" in line


def test_a_tool_that_never_returns_does_not_keep_a_drained_worker_from_exiting(
    start: Start, bus: SqliteBus, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "endless_tool.py").write_text(ENDLESS_TOOL.format(begun=str(begun)))
    (tmp_path / "magent2.toml").write_text(ENDLESS_TEAM)
    worker = start("--config", str(tmp_path / "magent2.toml"), MAGENT2_LIMIT_RUN_DRAIN_S="0")
    send(bus, "", sending=SendOptions(kind="tool"), metadata={"tool": "endless"})
    eventually(begun.exists, START_DEADLINE_S)

    worker.terminate()

    assert ended(worker)[0] == 0
    assert bus.call(Workers()) == ()
