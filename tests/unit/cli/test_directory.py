"""The commands that manage users, friends, swarms, channels, connectors and the outbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.log import run_sync
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.cli.main import run
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records
from magent2.directory.connectors import find_connector


class Shell:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def __call__(self, line: str, code: int = 0) -> str:
        found = run([*line.split(), "--bus", f"sqlite:///{self.path}"])
        out, err = self._capsys.readouterr()
        assert found == code, err
        return out if out else err

    def json(self, line: str) -> Any:
        return json.loads(self(f"{line} --json"))


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = Shell(tmp_path / "log.db", capsys)
    shell("users add ann --nametag ann --agent general")
    shell("users add bob --nametag bob --agent support")
    return shell


def test_users_are_added_changed_listed_and_removed(shell: Shell) -> None:
    shell("users set ann --agent sales")
    shell("users rm bob")

    (ann,) = shell.json("users ls")
    assert (ann["nametag"], ann["agent"]) == ("ann", "sales")
    assert "@ann" in shell("users ls")
    assert "choose another" in shell("users add anna --nametag ANN", 1)
    assert "no user" in shell("users set nobody --agent x", 1)


def test_agents_are_placed_and_retired(shell: Shell) -> None:
    assert shell.json("agents place digger --role sub --parent general")["parent"] == "general"
    assert "parent" in shell("agents place digger --role sub", 2)
    assert "digger" in shell("agents retire digger")


def test_friendships_are_requested_accepted_and_removed(shell: Shell) -> None:
    assert shell.json("friends request ann bob")["status"] == "pending"
    assert shell.json("friends accept bob ann")["status"] == "friends"
    assert "friends already" in shell("friends request ann bob", 2)
    assert shell.json("friends rm bob ann")["status"] == "apart"
    assert "again in 7 days" in shell("friends request ann bob", 2)
    assert shell.json("friends ls ann")[0]["users"] == ["ann", "bob"]


def test_swarms_are_added_changed_listed_and_removed(shell: Shell) -> None:
    shell("swarms add desk --owner bob --agent support")
    assert shell.json("swarms set desk --open --let-in ann")["guests"] == ["ann"]
    assert shell.json("swarms contacts desk") == []
    assert [swarm["nametag"] for swarm in shell.json("swarms ls")] == ["desk"]
    shell("swarms rm desk")
    assert shell.json("swarms ls") == []
    assert "choose another" in shell("swarms add ann --owner bob --agent x", 1)


def test_channels_gain_and_lose_members_and_change_leaders(shell: Shell) -> None:
    shell("channels add launch ann --user ann --agent general")
    assert len(shell.json("channels join launch bob --user bob --agent support")["members"]) == 2
    assert "first" in shell("channels leave launch ann", 2)
    assert shell.json("channels lead launch bob")["leader"] == "bob"
    assert len(shell.json("channels leave launch ann")["members"]) == 1
    assert shell.json("channels messages launch") == []
    shell("channels rm launch")
    assert shell.json("channels ls") == []


def test_connectors_are_added_and_dead_messages_of_their_outbox_retried(shell: Shell, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a-secret-for-tests-only\n")  # pragma: allowlist secret
    hook = f"connectors add hook --kind webhook --url https://example.com/ --secret-file {secret}"
    assert shell.json(hook)["capabilities"]["takes_key"] is False
    assert "https" in shell(f"connectors add bad --kind webhook --url http://10.0.0.1/ --secret-file {secret}", 2)
    assert "a-secret" not in shell("connectors ls --json")
    _stick(shell.path)

    (item,) = shell.json("outbox ls --state dead")
    shell(f"outbox retry hook {item['id']}")
    assert shell.json("outbox ls hook")[0]["state"] == "waiting"
    assert "only dead and unknown" in shell(f"outbox drop hook {item['id']}", 2)
    shell("connectors rm hook")
    assert [known["id"] for known in shell.json("connectors ls")] == ["web"]


def _stick(path: Path) -> None:
    bus = SqliteBus(path)
    message = OutgoingMessage("m-1", "hook", "", "one", "Ada", "hello", "2026-01-01T00:00:00+00:00")
    bus.call(Append(records=queue_records(message, run_sync(bus, find_connector, "hook").state)))
    bus.call(Append(records=(NewRecord("outbox:hook", {"event": "dead", "of": "m-1", "reason": "no"}),)))
    bus.close()
