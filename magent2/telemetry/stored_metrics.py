"""Metrics of several processes under one supervisor, added up.

Each process stores its values in files of a folder that all of them share. The files have the format of the
multi-process mode of prometheus_client, whose collector adds them up. A process that is started again under the same
name continues the values of its predecessor: counters do not go down, and there are no more files than processes.
The supervisor removes the gauges of a process that has ended.

That mode itself is not used. It takes the folder from an environment variable, which the programs that a worker starts
would inherit, and it names the files by process id, so that every restart leaves files behind.
"""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, values
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from prometheus_client.values import MutexValue

from magent2.private_files import create_file

log = logging.getLogger(__name__)

PROCESSES_FILE = "processes.json"
OWN_PREFIX = "magent2_"
START_TIME = "process_start_time_seconds"
CPU_TIME = "process_cpu_seconds"
FILE_BYTES = 1 << 19  # of one kind of metrics of one process; more than all routes and agents of a team need
# Every file that a metric of this package needs. A kind of gauge says how the values of several processes are combined.
FILE_PREFIXES = ("counter", "histogram", "gauge_livesum", "gauge_livemax", "gauge_livemostrecent")
READS_MAX = 3  # of the list of processes, while one of them ends


def store_metrics(folder: Path, process: str) -> None:
    """Store the metrics of this process in the folder. Call it before the first metric is created.

    If the files cannot be created, the process counts for itself, and its metrics are missing in the sum.
    """
    try:
        files = {prefix: _open_file(folder / f"{prefix}_{process}.db") for prefix in FILE_PREFIXES}
    except OSError as error:
        log.warning("the metrics of this process are not in the sum of all processes", extra={"error": str(error)})
        return
    lock = Lock()

    class StoredValue:
        """A number in a file. Every change is in the file at once, so it is not lost when the process is killed."""

        _multiprocess = True

        def __init__(
            self,
            typ: str,
            metric_name: str,
            name: str,
            labelnames: list[str],
            labelvalues: list[str],
            help_text: str,
            multiprocess_mode: str = "",
            **_: object,
        ) -> None:
            self._file = files[f"{typ}_{multiprocess_mode}" if typ == "gauge" else typ]
            self._key = mmap_key(metric_name, name, labelnames, labelvalues, help_text)
            with lock:
                self._value: float = self._file.read_value(self._key)[0]  # type: ignore[no-untyped-call]

        def inc(self, amount: float) -> None:
            with lock:
                self._value += amount
                self._file.write_value(self._key, self._value, 0.0)  # type: ignore[no-untyped-call]

        def set(self, value: float, timestamp: float | None = None) -> None:
            with lock:
                self._value = value
                self._file.write_value(self._key, value, timestamp or 0.0)  # type: ignore[no-untyped-call]

        def get(self) -> float:
            return self._value

        def set_exemplar(self, exemplar: object) -> None:
            """Ignore it: the files have no place for exemplars."""

        def get_exemplar(self) -> None:
            return None

    def create_value(typ: str, metric_name: str, *details: Any, **more: Any) -> StoredValue | MutexValue:
        """Create the value of a metric. Metrics that a tool or a library of the process has made are its own."""
        made: type[StoredValue | MutexValue] = StoredValue if metric_name.startswith(OWN_PREFIX) else MutexValue
        return made(typ, metric_name, *details, **more)

    values.ValueClass = create_value


def _open_file(path: Path) -> MmapedDict:
    """Open a file of values. A new one is written in full first.

    prometheus_client would leave a hole, and a process that writes into a hole on a full disk is killed.
    """
    if not path.exists():
        draft = path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with os.fdopen(create_file(draft, shared=False), "wb") as file:
            file.write(bytes(FILE_BYTES))
        draft.replace(path)
    return MmapedDict(str(path))  # type: ignore[no-untyped-call]


def forget_gauges(folder: Path, process: str) -> None:
    """Remove the gauges of a process that has ended. Its counters stay."""
    mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]


def stored_registry(folder: Path) -> CollectorRegistry:
    """Return a registry with the metrics of all processes that store theirs in the folder."""
    registry = CollectorRegistry()
    registry.register(StoredMetrics(folder))
    registry.register(ProcessSums(folder / PROCESSES_FILE))
    return registry


class StoredMetrics(Collector):
    """Adds up the files of all processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        files = [str(path) for path in self._folder.glob("*.db")]
        found: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return found


class ProcessList:
    """The processes that run, and the CPU time of those that have ended. The supervisor writes it, gateways read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pids: dict[str, int] = {}
        self._ended_cpu_s = 0.0

    def add(self, process: str, pid: int) -> None:
        self._pids[process] = pid
        self._write()

    def remove(self, process: str) -> None:
        """Remove a process that has ended. Call it before the process is reaped: its CPU time is read once more."""
        pid = self._pids.pop(process)
        self._ended_cpu_s += sum(
            sample.value for metric in process_metrics(pid) for sample in metric.samples if metric.name == CPU_TIME
        )
        self._write()

    def _write(self) -> None:
        try:
            self._replace_file()
        except OSError as error:  # such as a full disk; the processes run all the same
            log.warning("cannot write the list of processes for the metrics", extra={"error": str(error)})

    def _replace_file(self) -> None:
        draft = self._path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with os.fdopen(create_file(draft, shared=False), "w") as file:
            json.dump({"pids": self._pids, "ended_cpu_s": self._ended_cpu_s}, file)
        draft.replace(self._path)


def process_metrics(pid: int) -> Iterable[Metric]:
    """Return memory, CPU time and open files of a process: nothing if it has ended, or on systems without `/proc`."""
    return ProcessCollector(pid=lambda: pid, registry=None).collect()


class ProcessSums(Collector):
    """Adds up memory, CPU time and open files of all processes, the supervisor included."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def describe(self) -> Iterator[Metric]:
        """Return nothing: the names are known. Without this method the registry would collect at once."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        found, ended_cpu_s = self._read()
        numbers: defaultdict[str, list[float]] = defaultdict(list)
        for metric in chain.from_iterable(found):
            numbers[metric.name] += [sample.value for sample in metric.samples]
        kinds = {metric.name: metric for metric in chain.from_iterable(found)}
        for name, metric in kinds.items():
            if metric.type == "counter":
                yield CounterMetricFamily(name, metric.documentation, sum(numbers[name]) + ended_cpu_s)
            else:
                value = (min if name == START_TIME else sum)(numbers[name])
                yield GaugeMetricFamily(name, metric.documentation, value)

    def _read(self) -> tuple[list[list[Metric]], float]:
        """Read all processes. One that has ended meanwhile is not in the list any more, so the list is read again."""
        reads = 0
        while True:
            reads += 1
            listed = json.loads(self._path.read_text())
            found = [list(process_metrics(pid)) for pid in listed["pids"].values()]
            if all(found) or reads == READS_MAX:
                return [metrics for metrics in found if metrics], float(listed["ended_cpu_s"])
