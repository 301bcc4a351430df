"""`magent2 keys` and `magent2 erase`, also on a bus that a running gateway serves."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from magent2.bus.scrub import SCRUB_WITHIN_S
from magent2.client import Client
from magent2.token import TokenFile
from tests.support.command_line import CommandLine, RunningServer
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually

DEADLINE_S = 30.0


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

        sessions, headers = f"{server.url}/api/sdk/sessions", {"authorization": f"Bearer {made['key']}"}
        eventually(lambda: httpx2.get(sessions, headers=headers, timeout=DEADLINE_S).status_code == 401)


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
        "schedules": [],
        "entries": [],
        "webhooks": [],
        "scrubbed": True,
    }
    assert again.err.startswith("magent2: no API key, conversation or directory entry of 'user:ann'")


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_erase_leaves_no_text_while_a_server_runs(
    process_group: ProcessGroup, tmp_path: Path, wait: tuple[str, ...]
) -> None:
    word = "xylophonequartz"  # pragma: allowlist secret
    server = RunningServer(process_group, tmp_path)
    with CommandLine(tmp_path, MAGENT2_BUS_URL=server.bus_url) as cli:
        made = cli.run("keys", "create", "--scope", "user:ann", "--json").json
        with Client(server.url, made["key"]) as client:
            for number in range(3):
                sent = [
                    client.send("general", f"{word} {number} {turn}", conversation_id=f"c{number}") for turn in range(3)
                ]
                client.wait(sent[-1])

        done = cli.run("erase", "user:ann", "--yes", "--json", *wait)

    def found() -> list[str]:
        files = sorted(filter(Path.is_file, tmp_path.glob("log.db*")))
        return [file.name for file in files if word.encode() in file.read_bytes()]

    assert len(done.json["conversations"]) == 3
    assert not done.json["scrubbed"] or not found()
    assert done.json["scrubbed"] or not wait
    eventually(lambda: not found(), SCRUB_WITHIN_S + DEADLINE_S)


# --- tokens


def is_admin(server: RunningServer, token: str) -> bool:
    def status() -> int | None:
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx2.get(f"{server.url}/api/workers", headers=headers, timeout=DEADLINE_S)
        return None if answer.status_code == 429 else answer.status_code  # the rate of unknown tokens is limited

    found = eventually(status)
    assert found in (200, 401)
    return found == 200


def test_a_gateway_accepts_the_token_of_another_data_folder_until_it_is_replaced(
    process_group: ProcessGroup, tmp_path: Path, log_url: str
) -> None:
    one, two = (RunningServer(process_group, tmp_path / name, worker=False, bus_url=log_url) for name in ("a", "b"))
    assert one.token != two.token

    eventually(lambda: is_admin(two, one.token) and is_admin(one, two.token))
    with CommandLine(tmp_path / "a", MAGENT2_BUS_URL=log_url) as cli:
        new = cli.run("token", "rotate").out.strip()

    assert not is_admin(one, one.token)
    eventually(lambda: not is_admin(two, one.token))
    assert is_admin(one, new)
    assert is_admin(two, new)
    assert is_admin(two, two.token)


def test_a_token_file_replaced_by_hand_is_replaced_on_the_other_gateways(
    process_group: ProcessGroup, tmp_path: Path, log_url: str
) -> None:
    one, two = (RunningServer(process_group, tmp_path / name, worker=False, bus_url=log_url) for name in ("a", "b"))
    eventually(lambda: is_admin(two, one.token))

    new = TokenFile.within(tmp_path / "a").rotate()

    eventually(lambda: is_admin(two, new) and not is_admin(two, one.token))


def test_a_token_is_listed_as_a_key_and_can_be_revoked_for_other_gateways(
    process_group: ProcessGroup, tmp_path: Path, log_url: str
) -> None:
    one, two = (RunningServer(process_group, tmp_path / name, worker=False, bus_url=log_url) for name in ("a", "b"))
    eventually(lambda: is_admin(two, one.token))

    with CommandLine(tmp_path / "a", MAGENT2_BUS_URL=log_url) as cli:
        (key,) = [key for key in cli.run("keys", "ls", "--json").json if str(tmp_path / "a") in key["label"]]
        cli.run("keys", "revoke", key["id"])
        doctor = cli.run("doctor", "--url", one.url, "--json").json["findings"]

    eventually(lambda: not is_admin(two, one.token))
    assert is_admin(one, one.token), "its own gateway reads the file"
    assert one.token not in str(key)
    assert any(finding["status"] == "warn" and "is revoked on the bus" in finding["text"] for finding in doctor)


def test_doctor_finds_a_token_that_the_bus_does_not_know(process_group: ProcessGroup, tmp_path: Path) -> None:
    server = RunningServer(process_group, tmp_path / "a", worker=False)
    TokenFile.within(tmp_path / "b").obtain()

    with CommandLine(tmp_path / "b", MAGENT2_BUS_URL=server.bus_url) as cli:
        found = cli.run("doctor", "--url", server.url, "--json").json["findings"]
        cli.run("token", "rotate")
        after = cli.run("doctor", "--url", server.url, "--json").json["findings"]

    assert any(
        finding["status"] == "warn" and "the bus does not know the token" in finding["text"] for finding in found
    )
    assert {finding["status"] for finding in after if finding["what"] in ("token", "gateway")} == {"ok"}


def test_a_token_is_replaced_although_the_bus_cannot_be_reached(tmp_path: Path) -> None:
    with CommandLine(tmp_path, MAGENT2_BUS_URL="redis://127.0.0.1:1/0") as cli:
        cli.run("token", "rotate")
        done = cli.run("token", "rotate")

    assert done.code == 0
    assert done.out.strip() == TokenFile.within(tmp_path).read()
    assert "other gateways of this bus may still accept the old token" in done.err
    assert "magent2 keys revoke" in done.err
