"""Metrics in files that several processes share, and the parts of prometheus_client that this depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from magent2.telemetry.stored_metrics import (
    CPU_TIME,
    FILE_BYTES,
    PROCESSES_FILE,
    ProcessList,
    forget_gauges,
    process_metrics,
    stored_registry,
)
from tests.support.forked_processes import ROOT

# A process that counts and then dies without any cleaning up.
COUNT = """
import os, sys
from pathlib import Path
from magent2.telemetry.stored_metrics import store_metrics
store_metrics(Path(sys.argv[1]), sys.argv[2])
from magent2.telemetry.metrics import Metrics, RunMetrics
from prometheus_client import Gauge, Summary
Gauge("own_temperature", "Of a tool").set(20)
Summary("own_sizes", "Of a tool").observe(3)
gateway, worker = Metrics(), RunMetrics()
gateway.accepted.inc()
gateway.count_request("/send", "POST", 200, 0.003)
gateway.streams_open.set(4)
gateway.workers.set(int(sys.argv[3]))
worker.running.inc()
worker.set_circuit("model.example.org", True)
worker.count_run("general", "answered", 0.2)
os.kill(os.getpid(), 9)
"""


def count(folder: Path, process: str, workers: int = 1) -> None:
    arguments = [sys.executable, "-c", COUNT, str(folder), process, str(workers)]
    assert subprocess.run(arguments, cwd=ROOT, check=False).returncode == -9


def samples(folder: Path) -> dict[str, float]:
    text = generate_latest(stored_registry(folder)).decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes, of which the first was started twice."""
    folder = tmp_path_factory.mktemp("metrics")
    ProcessList(folder / PROCESSES_FILE).add("supervisor", os.getpid())
    count(folder, "gateway-1")
    forget_gauges(folder, "gateway-1")
    count(folder, "gateway-1")
    count(folder, "gateway-2", workers=7)
    return folder


def test_counters_and_histograms_of_killed_processes_are_added_up(counted: Path) -> None:
    found = samples(counted)

    assert found['magent2_sends_total{outcome="accepted"}'] == 3
    assert found['magent2_requests_total{method="POST",route="/send",status="200"}'] == 3
    assert found['magent2_request_seconds_count{route="/send"}'] == 3
    assert found['magent2_request_seconds_bucket{le="0.005",route="/send"}'] == 3
    assert found['magent2_request_seconds_bucket{le="0.001",route="/send"}'] == 0
    assert found['magent2_runs_total{agent="general",outcome="answered"}'] == 3
    assert [name for name in found if name.startswith("own_")] == []  # metrics of tools stay in their process


def test_gauges_are_those_of_processes_that_run(counted: Path) -> None:
    found = samples(counted)

    assert (found["magent2_streams_open"], found["magent2_runs_running"]) == (8, 2)
    assert found["magent2_workers"] == 7  # read from the bus last
    assert found['magent2_model_circuit_open{provider="model.example.org"}'] == 1


def test_files_are_private_and_not_more_than_one_of_each_kind_per_process(counted: Path) -> None:
    files = list(counted.glob("*.db"))

    assert {path.stat().st_mode & 0o777 for path in counted.iterdir()} == {0o600}
    assert len(files) == 2 * len({path.name.rpartition("_")[0] for path in files})


def test_files_have_no_holes_into_which_a_write_could_fail(counted: Path) -> None:
    assert {path.stat().st_size for path in counted.glob("*.db")} == {FILE_BYTES}
    assert all(path.stat().st_blocks * 512 >= FILE_BYTES for path in counted.glob("*.db"))


def test_a_process_that_cannot_create_its_files_counts_for_itself(tmp_path: Path) -> None:
    script = COUNT.replace("os.kill(os.getpid(), 9)", "print(gateway.text().decode())")
    arguments = [sys.executable, "-c", script, str(tmp_path / "missing"), "gateway-1", "1"]

    done = subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True, text=True)

    assert 'magent2_sends_total{outcome="accepted"} 1.0' in done.stdout
    assert "not in the sum of all processes" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_are_added_up_and_the_time_of_ended_ones_is_kept(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); input()"], stdin=subprocess.PIPE)
    processes = ProcessList(tmp_path / PROCESSES_FILE)
    processes.add("supervisor", os.getpid())
    processes.add("worker-1", child.pid)
    both = samples(tmp_path)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    processes.remove("worker-1")
    child.communicate()
    one = samples(tmp_path)

    assert both["process_resident_memory_bytes"] > one["process_resident_memory_bytes"] > 0
    assert one["process_cpu_seconds_total"] >= both["process_cpu_seconds_total"] > 0
    assert json.loads((tmp_path / PROCESSES_FILE).read_text())["pids"] == {"supervisor": os.getpid()}
    assert one["process_start_time_seconds"] == both["process_start_time_seconds"]


def test_a_process_that_has_gone_is_left_out(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    processes = ProcessList(tmp_path / PROCESSES_FILE)
    processes.add("worker-1", child.pid)

    assert list(process_metrics(child.pid)) == []
    assert samples(tmp_path) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_prometheus_client_names_the_cpu_time_as_expected() -> None:
    assert CPU_TIME in {metric.name for metric in process_metrics(os.getpid())}
