"""The service as a newcomer meets it: what the README and the program print works as printed, and so does compose."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from magent2.gateway.server import choose_access
from magent2.settings import Settings
from tests.support.forked_processes import ROOT
from tests.support.http_client.new_user import BIN, ComposeService, NewUser, RunningProgram, section
from tests.support.http_client.service import quiet_port
from tests.support.redis_server import RedisServer

PORT = "8700"  # as the documents print it
ADDRESS = re.compile(r"gateway  http://127\.0\.0\.1:(\d+)/\ntoken    .*magent2 token show\n")


@pytest.fixture
def newcomer(tmp_path: Path, forked_programs: str) -> Iterator[NewUser]:
    home = tmp_path / "home"
    home.mkdir()
    with NewUser(home, forked_programs) as newcomer:
        yield newcomer


@pytest.fixture
def port() -> str:
    return str(quiet_port())


@dataclass(frozen=True, slots=True)
class Served:
    """`magent2 serve`, which has said where it is, and somebody who does not say the port. Started as programs."""

    running: RunningProgram
    port: str
    newcomer: NewUser

    def enter(self, lines: str, stdin: str = "") -> str:
        return self.newcomer.enter(lines.replace(PORT, self.port), stdin)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home, port = tmp_path_factory.mktemp("newcomer") / "home", str(quiet_port())
    home.mkdir()
    with NewUser(home, MAGENT2_PORT=port) as newcomer:
        yield Served(serve(newcomer, port), port, newcomer)


def serve(newcomer: NewUser, port: str) -> RunningProgram:
    running = newcomer.start([".venv/bin/magent2", "serve", "--port", port])
    running.await_words(f"http://127.0.0.1:{port}/send\n")
    running.await_gateway(port)
    return running


def blocks(title: str, language: str) -> list[str]:
    return [text for kind, text in section("README.md", title) if kind == language]


def at(port: str, lines: str) -> str:
    return lines.replace(PORT, port)


def streamed(text: str) -> list[str]:
    return re.findall(r"^event: (.*)$", text, re.M)


# --- one process


def test_make_run_serves() -> None:
    plan = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert ".venv/bin/magent2 serve" in plan


def test_it_prints_its_address_and_lines_that_work(served: Served) -> None:
    said = served.running.said
    found = ADDRESS.search(said)
    sending, curl = said.partition("send the first message:\n")[2].split("\n", 1)

    assert found is not None
    assert found[1] == served.port
    assert (served.newcomer.home / ".local/share/magent2/token").read_text().strip() not in said
    assert served.enter(sending).strip()
    assert json.loads(served.enter(curl.replace('"c1"', '"c0"')))["status"] == "ok"  # c1 is the README's


def test_the_lines_of_the_readme_send_chat_and_stream(served: Served) -> None:
    talking, curling = blocks("Send the first message", "sh")

    said = served.enter(talking, stdin="hello\n/quit\n")
    answer, _, stream = served.enter(curling).partition("}")

    assert len(said.splitlines()) >= 2
    assert json.loads(answer + "}")["topic"] == "chat:c1"
    assert streamed(stream)[:2] == ["user_message", "run"]
    assert streamed(stream)[-1] == "end"


def test_the_python_lines_of_the_readme_print_the_answer_and_its_events(served: Served) -> None:
    (lines,) = blocks("Send the first message", "python")

    printed = served.enter(f'"{sys.executable}" -', stdin=lines).splitlines()

    assert printed[0]
    assert any("user_message hello" in line for line in printed)
    assert any(f"output {printed[0]}" in line for line in printed)


def test_it_goes_home_when_told_and_finds_everything_again(newcomer: NewUser, port: str) -> None:
    newcomer.variables["MAGENT2_PORT"] = port  # so that lines that name no port find this one
    running = serve(newcomer, port)
    newcomer.enter(".venv/bin/magent2 send general hello --wait --conversation kept")
    before = newcomer.enter(".venv/bin/magent2 tail kept --no-follow --json")

    assert running.stop() == 0
    serve(newcomer, port)

    assert newcomer.enter(".venv/bin/magent2 tail kept --no-follow --json") == before


# --- many processes on Redis


@pytest.mark.redis
def test_the_readmes_gateway_and_worker_on_redis(newcomer: NewUser, port: str, redis_server: RedisServer) -> None:
    (lines,) = blocks("Scale out", "sh")
    newcomer.variables |= {"REDIS_URL": f"{redis_server.url}?prefix=readme", "MAGENT2_PORT": port}
    gateway, worker = re.findall(r"^\.venv/bin/(.*?) *(?:#.*)?$", lines, re.M)
    newcomer.start(worker.split())
    newcomer.start(gateway.split()).await_gateway(port)

    assert newcomer.enter(".venv/bin/magent2 send general 'hello there' --wait") == "hello there\n"


@pytest.mark.redis
def test_the_processes_of_compose_by_hand(newcomer: NewUser, port: str, redis_server: RedisServer) -> None:
    newcomer.programs = BIN
    gateway, worker = ComposeService.read("gateway"), ComposeService.read("worker")
    here = {"REDIS_URL": f"{redis_server.url}?prefix=compose", "MAGENT2_DATA_DIR": str(newcomer.home / "data")}
    assert {*gateway.environment, *worker.environment} >= {"REDIS_URL"}
    # As in the file, but for the address: a test listens on this machine alone.
    place = [at(port, word).replace("0.0.0.0", "127.0.0.1") for word in gateway.command]
    path = {"PATH": f"{BIN}:{os.defpath}"}  # as in the image
    working = newcomer.start(worker.command, **{**worker.environment, **here, **path})
    newcomer.start(place, **{**gateway.environment, **here}).await_gateway(port)
    newcomer.variables |= {"MAGENT2_PORT": port, **here}
    command = at(port, gateway.health[-1])

    newcomer.enter(f'"{sys.executable}" -', stdin=command)
    (_, curling) = blocks("Send the first message", "sh")
    assert newcomer.enter(".venv/bin/magent2 send general 'hello there' --wait") == "hello there\n"
    stream = newcomer.enter(at(port, curling))
    assert streamed(stream)[-1] == "end"
    assert "model    the demo model" in working.said


TEAM = """
[[scenario]]
id = "shop"
root = "clerk"

[[scenario.agent]]
name = "clerk"
"""


@pytest.mark.redis
def test_a_team_of_ones_own_is_served_by_the_processes_of_compose(
    newcomer: NewUser, port: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    team = tmp_path / "team"
    team.mkdir()
    (team / "magent2.toml").write_text(TEAM)
    services = [ComposeService.read(name, MAGENT2_TEAM=str(team)) for name in ("gateway", "worker")]
    assert [service.mounts["/team"] for service in services] == [str(team)] * 2
    assert [service.environment["MAGENT2_CONFIG"] for service in services] == ["/team/magent2.toml"] * 2
    here = {
        "REDIS_URL": f"{redis_server.url}?prefix=own-team",
        "MAGENT2_DATA_DIR": str(newcomer.home / "data"),
        "MAGENT2_CONFIG": str(team / "magent2.toml"),  # where the folder is mounted
        "PATH": f"{newcomer.programs}:{os.defpath}",
    }
    gateway, worker = services
    place = [at(port, word).replace("0.0.0.0", "127.0.0.1") for word in gateway.command]
    newcomer.start(worker.command, **{**worker.environment, **here})
    newcomer.start(place, **{**gateway.environment, **here}).await_gateway(port)
    newcomer.variables |= {"MAGENT2_PORT": port, **here}

    assert newcomer.enter(".venv/bin/magent2 send clerk 'hello there' --wait") == "hello there\n"


def test_the_gateway_of_compose_has_a_token_on_a_fresh_volume(tmp_path: Path) -> None:
    gateway = ComposeService.read("gateway")
    host = gateway.command[gateway.command.index("--host") + 1]
    settings = Settings.read({**gateway.environment, "MAGENT2_DATA_DIR": str(tmp_path)})

    assert choose_access(settings, host).token


# --- the session API


# What the page tries; people and places are tried in docs/messaging.md, steering and approvals in pages of their own.
OF_SESSIONS = (
    "/api/sdk",
    "/api/stream",
    "/api/me",
    "/api/agents",
    "/api/orchestrate",
    "/api/scenarios",
    "/api/tools",
    "/api/dead",
)
LEFT_OUT = {  # these need something that happened first; tests/support/api/cases.py has them
    ("POST", "/api/sdk/session/{session_id}/retry"),
    ("POST", "/api/sdk/session/{session_id}/regenerate"),
    ("POST", "/api/sdk/session/{session_id}/edit"),
    ("POST", "/api/sdk/session/{session_id}/steer"),
    ("GET", "/api/sdk/session/{session_id}/receipts/{receipt_id}"),
    ("GET", "/api/sdk/session/{session_id}/approvals"),
    ("POST", "/api/sdk/session/{session_id}/approvals/{call_id}"),
    ("GET", "/api/sdk/session/{session_id}/files/{sha256}"),
    ("POST", "/api/dead"),
    ("POST", "/api/dead/{agent}/{seq}/retry"),
    ("DELETE", "/api/dead/{agent}/{seq}"),
}


def test_the_lines_of_the_page_about_the_api_work_as_printed(served: Served) -> None:
    """Each is answered, none is refused, and together they are all the routes that there are."""
    ((_, block),) = section("docs/api.md", "Try it")
    setting, _, lines = block.partition("\n\n")
    document = json.loads(served.enter(f"curl -sS http://127.0.0.1:{PORT}/openapi.json"))
    asked = set()
    for line in lines.splitlines():
        said = served.enter(f"{setting}\n{line}")
        assert '"type":"/problems/' not in said, f"{line}\n{said}"
        asked.add(route_of(line, document["paths"]))
        if "-N" in line:
            assert streamed(said)[-1] == "end"
        elif "DELETE" not in line:
            assert json.loads(said)

    promised = {(method.upper(), path) for path, ways in document["paths"].items() for method in ways}
    assert asked == {key for key in promised if key[1].startswith(OF_SESSIONS)} - LEFT_OUT


def route_of(line: str, paths: dict[str, object]) -> tuple[str, str]:
    """Which route a line of the page asks."""
    path = "/api" + line.split()[1].strip("'").partition("?")[0]
    given = re.search(r"-X (\w+)", line)
    method = given[1] if given else "POST" if " -d " in line else "GET"
    known = path if path in paths else path.replace("/s1", "/{session_id}")
    return method, known
