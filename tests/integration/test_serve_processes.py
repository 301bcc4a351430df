"""`magent2 serve --workers N --gateways N`: real processes that are killed, crash and drain."""

from __future__ import annotations

import os
import re
import signal
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from magent2.bus.log import run_sync
from magent2.bus.sqlite import SqliteBus
from magent2.directory.keys import create_key
from tests.support.command_line import CommandLine
from tests.support.command_line import ended as command_ended
from tests.support.supervised_service import (
    DEADLINE_S,
    SupervisedService,
    ended,
    is_running,
    start_supervisor,
    supervised_service,
)
from tests.support.waiting import eventually

BURST = 20
LEASE_S = 1.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_several_processes_answer_on_one_address_and_drain_as_one(tmp_path: Path, log_url: str) -> None:
    with supervised_service(tmp_path, log_url) as service:
        pids = service.await_all()
        for gateway in ("gateway-1", "gateway-2"):
            assert service.say(service.connect(to=gateway), f"hello {gateway}") == f"hello {gateway}"

        service.process.terminate()

        assert ended(service.process) == 0
        assert [pid for pid in pids.values() if is_running(pid)] == []
        assert list((tmp_path / "data").glob("supervisor-*")) == []
        (line,) = [line for line in service.log.splitlines() if "server is not set up safely" not in line]
        assert line.startswith("magent2: draining: ")


def test_a_killed_gateway_drops_only_its_own_connections_and_comes_back(tmp_path: Path) -> None:
    with supervised_service(tmp_path, workers=1) as service:
        service.await_all()
        lost, kept = ([service.connect(to=name) for _ in range(3)] for name in ("gateway-1", "gateway-2"))
        assert [service.ask(client).status for client in (*lost, *kept)] == [200] * 6

        old = service.kill("gateway-1")

        assert [service.ask(client).status for client in lost] == [0] * 3
        assert [service.ask(client).status for client in kept] == [200] * 3
        assert service.ask(service.connect()).status == 200
        service.await_return("gateway-1", old)
        assert service.ask(service.connect(to="gateway-1")).status == 200
        assert "process_name=gateway-1 end=SIGKILL" in service.log


def test_connections_that_wait_for_a_killed_gateway_are_served_by_another(tmp_path: Path) -> None:
    with supervised_service(tmp_path, workers=1) as service:
        pids = service.await_all()
        for name in ("gateway-1", "gateway-2"):
            os.kill(pids[name], signal.SIGSTOP)
        waiting = [service.connect() for _ in range(8)]  # in the queue of the socket: both gateways are frozen

        service.kill("gateway-1")
        os.kill(pids["gateway-2"], signal.SIGCONT)

        assert [service.ask(client).status for client in waiting] == [200] * 8


def test_another_worker_finishes_the_run_of_a_killed_worker_and_that_one_comes_back(tmp_path: Path) -> None:
    with supervised_service(tmp_path, gateways=1, variables={"MAGENT2_LIMIT_LEASE_S": str(LEASE_S)}) as service:
        service.await_all()
        sent = service.client.send("general", "use hold")
        held = tmp_path / "held"
        first = int(eventually(lambda: held.exists() and held.read_text().strip(), DEADLINE_S))
        (name,) = [name for name, pid in service.pids().items() if pid == first]

        service.kill(name)
        (tmp_path / "go").touch()

        assert "held" in service.client.wait(sent, timeout_s=DEADLINE_S).text
        assert len(held.read_text().split()) == 2
        service.await_return(name, first)


def test_metrics_are_the_sum_over_all_processes_also_over_killed_ones(tmp_path: Path) -> None:
    with supervised_service(tmp_path) as service:
        service.await_all()

        def send(count: int) -> None:
            for gateway in ("gateway-1", "gateway-2"):
                connections = [service.connect(to=gateway) for _ in range(count)]
                assert [service.say(one, "hello") for one in connections] == ["hello"] * count

        send(3)
        before = service.metric("process_cpu_seconds_total")
        eventually(lambda: _counts(service) == (6, 6), DEADLINE_S)  # a worker counts a run after its answer is sent
        for name in ("gateway-1", "worker-1", "worker-2"):
            service.await_return(name, service.kill(name))
            assert _counts(service) == (6, 6)
        service.await_all()
        send(1)

        eventually(lambda: _counts(service) == (8, 8), DEADLINE_S)
        assert service.metric("process_cpu_seconds_total") > before
        eventually(lambda: service.metric("magent2_runs_running") == service.metric("magent2_streams_open") == 0)


def _counts(service: SupervisedService) -> tuple[float, float]:
    """Accepted messages, answered runs."""
    return (
        service.metric("magent2_sends_total", outcome="accepted"),
        service.metric("magent2_runs_total", outcome="answered"),
    )


def test_limits_of_connections_hold_over_all_gateways(tmp_path: Path) -> None:
    limits = {"MAGENT2_LIMIT_CONNECTIONS_MAX": "14", "MAGENT2_LIMIT_CONNECTIONS_PER_ADDRESS_MAX": "10"}
    with supervised_service(tmp_path, workers=1, variables=limits) as service:
        service.await_all()
        for gateway in ("gateway-1", "gateway-2") * 5:
            assert service.ask(service.connect(to=gateway)).status == 200

        refused = service.ask(service.connect(to="gateway-2"))
        others = [service.ask(service.connect(to="gateway-1", source="127.0.0.2")).status for _ in range(5)]
        probe = service.ask(service.connect(to="gateway-2"), "/health")
        old = service.kill("gateway-1")
        service.await_return("gateway-1", old)

        assert (refused.status, refused.code) == (503, "too_many_connections")
        assert others == [200] * 4 + [503]
        assert probe.status == 200
        assert service.ask(service.connect()).status == 200  # those of the killed gateway do not count any more


def test_a_rate_limit_holds_over_all_gateways(tmp_path: Path) -> None:
    limits = {"MAGENT2_LIMIT_READ_PER_S": "0.001", "MAGENT2_LIMIT_READ_BURST": str(BURST)}
    with supervised_service(tmp_path, workers=1, variables=limits) as service:
        service.await_all()
        bus = SqliteBus(tmp_path / "log.db")
        ann = run_sync(bus, create_key, ("user:ann",)).text
        bus.close()

        def admitted(gateway: str) -> int:
            connection = service.connect(to=gateway)
            statuses = (service.ask(connection, "/api/sdk/sessions", ann).status for _ in range(2 * BURST))
            return sum(1 for _ in takewhile(lambda status: status == 200, statuses))

        assert admitted("gateway-1") == BURST
        eventually(lambda: admitted("gateway-2") == 0, DEADLINE_S)


def test_a_process_that_crashes_at_once_is_started_again_after_growing_delays(tmp_path: Path) -> None:
    with supervised_service(tmp_path, workers=1, gateways=1) as service:
        service.await_all()
        (tmp_path / "crash").touch()
        service.kill("worker-1")

        def delays() -> list[tuple[str, str, float]]:
            found = re.findall(
                r"process_name=worker-1 end=(.+) ran_s=\S+ failures=(\d+) restart_in_s=(\S+)", service.log
            )
            return [(end, failures, float(delay)) for end, failures, delay in found]

        eventually(lambda: len(delays()) >= 3, DEADLINE_S)
        (tmp_path / "crash").unlink()

        ends, failures, waits = zip(*delays()[:3], strict=True)
        assert ends == ("SIGKILL", *["'exit code 3'"] * 2)
        assert failures == ("1", "2", "3")
        assert all(0.125 * 2**n <= wait + 0.01 and wait <= 0.25 * 2**n for n, wait in enumerate(waits)), waits
        assert service.client.ask("general", "hello", timeout_s=DEADLINE_S).text == "hello"


def test_sighup_makes_every_process_read_the_agents_file_again(tmp_path: Path) -> None:
    with supervised_service(tmp_path, gateways=1) as service:
        service.await_all()

        service.process.send_signal(signal.SIGHUP)

        for name in service.names:
            eventually(lambda name=name: f"[{name}] magent2: " in service.log, DEADLINE_S)  # type: ignore[misc]


def test_one_ctrl_c_to_the_process_group_lets_runs_end_and_then_closes_streams(tmp_path: Path) -> None:
    with supervised_service(tmp_path) as service:
        service.await_all()
        sent = service.client.send("general", "use hold", conversation_id="c1")
        eventually((tmp_path / "held").exists, DEADLINE_S)
        stream = service.connect()
        stream.send(
            f"GET /stream/c1 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {service.token}\r\n\r\n".encode()
        )

        os.killpg(service.process.pid, signal.SIGINT)
        eventually(lambda: "draining" in service.log, DEADLINE_S)
        assert service.client.conversation("c1").run_status == "running"
        (tmp_path / "go").touch()

        assert ended(service.process) == 0
        events = re.findall(r"^event: (\w+)", stream.read_to_end().decode(), re.MULTILINE)
        assert events[-2:] == ["run", "end"]
        assert service.log.count("draining") == 1
        assert sent.conversation_id == "c1"


def test_the_second_signal_ends_all_processes_immediately(tmp_path: Path) -> None:
    with supervised_service(tmp_path, workers=1, gateways=1) as service:
        pids = service.await_all()
        service.client.send("general", "use hold")
        eventually((tmp_path / "held").exists, DEADLINE_S)

        service.process.terminate()
        eventually(lambda: "draining" in service.log, DEADLINE_S)
        service.process.terminate()

        assert ended(service.process) == 1
        eventually(lambda: not any(map(is_running, pids.values())), DEADLINE_S)


def test_the_processes_drain_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with supervised_service(tmp_path) as service:
        pids = service.await_all()

        service.process.kill()

        eventually(lambda: not any(map(is_running, pids.values())), DEADLINE_S)
        eventually(lambda: service.log.count("the supervisor has ended; this process drains") == 4, DEADLINE_S)


def test_an_error_at_the_first_start_is_reported_once_and_ends_everything(tmp_path: Path) -> None:
    (tmp_path / "magent2.toml").write_text(
        '[[scenario]]\nid = "default"\n[[scenario.agent]]\nname = "a"\ntools = ["x"]\n[tools]\nx = "no_such_module:x"\n'
    )
    with CommandLine(tmp_path / "data") as commands:
        done = command_ended(start_supervisor(commands, tmp_path, f"sqlite:///{tmp_path / 'log.db'}", 2, 2))

    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("magent2: ")
    assert "no_such_module" in line


def test_processes_that_are_started_as_programs_answer_and_drain(tmp_path: Path) -> None:
    with CommandLine(tmp_path / "data") as commands:
        process = commands.start("serve", "--workers", "1", "--gateways", "1", "--port", "0")
        said, url, _ = commands.greeting(process)
        sent = commands.run("send", "general", "hello", "--wait", MAGENT2_URL=url)
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)

    assert "1 gateway and 1 worker under one supervisor" in said
    assert (sent.out, process.returncode) == ("hello\n", 0), err
    assert len(err.splitlines()) == 1
