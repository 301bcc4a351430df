"""`magent2 python` and the demo's blocks, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.client import Client
from tests.support.command_line import CommandLine
from tests.support.waiting import eventually

DEADLINE_S = 30.0

GOOD = 'print(weather("Oslo")["city"])\nfor n in range(2):\n    chat_send("agent:sales", f"note {n}", "notes")\n'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandLine, Client]]:
    with CommandLine(tmp_path_factory.mktemp("served") / "data") as commands:
        process = commands.start("serve", "--port", "0", "--model", "demo")
        _, url, token = commands.greeting(process)
        commands.variables["MAGENT2_URL"] = url
        with Client(url, token) as client:
            yield commands, client


def test_a_file_runs_as_a_block_and_its_messages_are_sent(served: tuple[CommandLine, Client], tmp_path: Path) -> None:
    commands, client = served
    (tmp_path / "good.py").write_text(GOOD)

    done = commands.run("python", str(tmp_path / "good.py"), "--agent", "general", "-c", "by-hand")

    assert (done.code, done.out) == (0, "Oslo\n\n[Messages: 2 sent]\n")
    assert "conversation by-hand" in done.err
    texts = eventually(lambda: [event.text for event in client.events("notes").events if event.kind == "output"])
    assert texts[0] == "[agent:general]: note 0"


def test_a_failed_block_prints_its_error_and_exits_with_code_1(served: tuple[CommandLine, Client]) -> None:
    commands, client = served

    done = commands.run("python", "-", "--agent", "general", stdin=GOOD.replace('"notes"', '"never"') + "1/0")

    assert done.code == 1
    assert done.out.endswith("ZeroDivisionError: division by zero\n\n[Messages: 2 NOT sent (script failed)]\n")
    assert not [one for one in client.conversations().conversations if one.conversation_id == "never"]


def test_an_agent_without_run_python_is_refused(served: tuple[CommandLine, Client]) -> None:
    done = served[0].run("python", "-", "--agent", "sales", stdin="1")

    assert done.code == 1
    assert "may not use tool 'run_python'" in done.err


def test_the_demo_model_runs_a_block_and_one_that_fails(served: tuple[CommandLine, Client]) -> None:
    _, client = served

    well = client.ask("general", "run a block", timeout_s=DEADLINE_S)
    badly = client.ask("general", "Run a block that fails.", timeout_s=DEADLINE_S)
    fenced = client.ask("general", "```python\nsum(range(5))\n```", timeout_s=DEADLINE_S)

    assert well.text == "told sales and support\n\n[Messages: 2 sent]"
    assert badly.text.startswith("two messages wait\nTraceback")
    assert badly.text.endswith("\n\n[Messages: 2 NOT sent (script failed)]")
    assert fenced.text == "10"
