"""`magent2 keys` and `magent2 erase`, also on a bus that a running gateway serves."""

from __future__ import annotations

from pathlib import Path

import httpx2

from magent2.client import Client
from tests.support.command_line import CommandLine, RunningServer
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually


def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(tmp_path: Path) -> None:
    with CommandLine(tmp_path) as cli:
        made = cli.run("keys", "create", "--scope", "user:ann", "--label", "laptop", "--json")
        listed = cli.run("keys", "ls", "--json")
        shown = cli.run("keys", "ls")
        revoked = cli.run("keys", "revoke", made.json["id"], "--json")

    assert made.code == listed.code == shown.code == revoked.code == 0
    (key,) = listed.json
    assert key == {name: value for name, value in made.json.items() if name != "key"}
    assert made.json["key"].startswith(f"mk_{key['id']}_")
    secret = made.json["key"].removeprefix(f"mk_{key['id']}_")
    assert secret not in listed.out + shown.out + revoked.out
    assert "laptop" in shown.out
    assert revoked.json["revoked_at"] is not None


def test_an_error_is_one_line(tmp_path: Path) -> None:
    with CommandLine(tmp_path) as cli:
        bad = cli.run("keys", "create", "--scope", "root")
        none = cli.run("keys", "create")
        unknown = cli.run("keys", "revoke", "000000000000")
        memory = cli.run("keys", "ls", "--bus", "memory://")

    assert [done.code for done in (bad, none, unknown, memory)] == [2, 2, 1, 2]
    for done in (bad, none, unknown, memory):
        assert done.err.startswith("magent2: ")
        assert done.err.count("\n") == 1


def test_a_running_gateway_honours_a_created_and_a_revoked_key(process_group: ProcessGroup, tmp_path: Path) -> None:
    server = RunningServer(process_group, tmp_path, worker=False)
    with CommandLine(tmp_path, MAGENT2_BUS_URL=server.bus_url) as cli:
        made = cli.run("keys", "create", "--scope", "user:ann", "--json").json
        with Client(server.url, made["key"]) as client:
            sent = client.send("Ada", "hello")
            assert client.conversation(sent.conversation_id).last_seq == sent.seq

        assert cli.run("keys", "revoke", made["id"]).code == 0

        headers = {"authorization": f"Bearer {made['key']}"}
        eventually(lambda: httpx2.get(f"{server.url}/api/sdk/sessions", headers=headers).status_code == 401)


def test_erase_needs_confirmation_and_reports_what_it_deleted(process_group: ProcessGroup, tmp_path: Path) -> None:
    server = RunningServer(process_group, tmp_path, worker=False)
    with CommandLine(tmp_path, MAGENT2_BUS_URL=server.bus_url) as cli:
        made = cli.run("keys", "create", "--scope", "user:ann", "--json").json
        with Client(server.url, made["key"]) as client:
            sent = client.send("Ada", "a secret")

        unsure = cli.run("erase", "user:ann")
        done = cli.run("erase", "user:ann", "--yes", "--json")
        again = cli.run("erase", "user:ann", "--yes")

    assert (unsure.code, done.code, again.code) == (2, 0, 1)
    assert done.json == {
        "user": "user:ann",
        "keys": [made["id"]],
        "conversations": [sent.conversation_id],
        "entries": [],
    }
    assert again.err.startswith("magent2: no API key, conversation or directory entry of 'user:ann'")
