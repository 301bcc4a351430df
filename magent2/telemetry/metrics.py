"""Prometheus metrics of gateways and workers. Labels never hold ids or text that a client sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from magent2.errors import SettingsError
from magent2.settings import HOST, PORT_MAX

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RUN_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LABELS_MAX = 200  # values of one label; further values are counted as `other`
OTHER = "other"
UNKNOWN_TOOL = "unknown"  # the label for tool names that a model or a client invented


def new_registry() -> CollectorRegistry:
    """Make a registry with the metrics of the process: memory, CPU time, open files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def latency_histogram(name: str, description: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"magent2_{name}_seconds", description, buckets=LATENCY_BUCKETS_S, registry=registry)


def agent_histogram(name: str, description: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"magent2_{name}_seconds", description, ("agent",), buckets=RUN_BUCKETS_S, registry=registry)


class BoundedLabel:
    """Limits the values of one label: the first `values_max` keep their names, all others become `other`."""

    def __init__(self, values_max: int = LABELS_MAX) -> None:
        self._values: set[str] = set()
        self._max = values_max

    def value(self, name: str) -> str:
        if name not in self._values:
            if len(self._values) >= self._max:
                return OTHER
            self._values.add(name)
        return name


class PlaceUsage(Protocol):
    """Places that are limited in number: how many are in use, and how many callers wait for one."""

    @property
    def busy(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class BusConnections:
    """How many connections of the process's bus are in use. Only an engine with few of them counts this."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(
            "magent2_bus_connections",
            "Connections of the bus that run an operation, and operations that wait for one",
            ("state",),
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._places: PlaceUsage | None = None

    def read_usage_of(self, bus: object) -> None:
        """Read the use of the connections whenever the metrics are requested."""
        self._places = getattr(bus, "usage", None)
        if self._places is not None:
            self._gauge.labels("busy").set_function(partial(getattr, self._places, "busy"))
            self._gauge.labels("waiting").set_function(partial(getattr, self._places, "waiting"))

    def copy_usage(self) -> None:
        """Set the values now, for processes whose metrics other processes read."""
        if self._places is not None:
            self._gauge.labels("busy").set(self._places.busy)
            self._gauge.labels("waiting").set(self._places.waiting)


class Metrics:
    """The metrics of one gateway, in a registry of its own unless one is given.

    `exposed` is the registry that `text` shows: that of all processes under one supervisor, by default its own.
    """

    def __init__(self, registry: CollectorRegistry | None = None, exposed: CollectorRegistry | None = None) -> None:
        is_shared = registry is not None  # its other user counts the connections of the bus
        self.registry = registry = registry or new_registry()
        self._exposed = exposed or registry
        self.bus = None if is_shared else BusConnections(registry)
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "magent2_requests", "Requests answered", ("route", "method", "status"), registry=registry
        )
        self._latency = Histogram(
            "magent2_request_seconds",
            "Time until the response head was sent",
            ("route",),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._refusals = Counter("magent2_refusals", "Requests refused", ("code",), registry=registry)
        self._codes = BoundedLabel()
        self.streams_open = Gauge(
            "magent2_streams_open", "Event streams that are open", multiprocess_mode="livesum", registry=registry
        )
        self.events_sent = Counter("magent2_events_sent", "Events sent to readers of streams", registry=registry)
        sends = Counter("magent2_sends", "Messages accepted", ("outcome",), registry=registry)
        self.accepted, self.repeated = sends.labels("accepted"), sends.labels("repeated")
        self.cut_off = Counter(
            "magent2_readers_cut_off", "Readers disconnected because they were too slow", registry=registry
        )
        self.delivered = latency_histogram("bus_deliver", "Time until the bus accepted a message", registry).observe
        # These are about the whole bus. The gateway that is asked has just read them, so the last value counts.
        self.lanes = Gauge(
            "magent2_lanes",
            "Lanes with mail on the bus, at most 1000 per agent",
            ("state",),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.schedules = Gauge(
            "magent2_schedules",
            "Schedules on the bus, at most 10,000; late ones have a slot that no worker fires",
            ("state",),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self.workers = Gauge(
            "magent2_workers",
            "Workers with a lease on the bus",
            multiprocess_mode="livemostrecent",
            registry=registry,
        )

    def copy_usage(self) -> None:
        """Set what is read on request now, for processes whose metrics other processes read."""
        if self.bus is not None:
            self.bus.copy_usage()

    def count_request(self, route: str, method: str, status: int, taken_s: float) -> None:
        # Looking a label up costs more than counting, so each combination is looked up once.
        key = (route, method, status)
        found = self._children.get(key)
        if found is None:
            counter = self._requests.labels(route, method, str(status))
            found = self._children[key] = (counter, self._latency.labels(route))
        found[0].inc()
        found[1].observe(taken_s)

    def count_refusal(self, code: str) -> None:
        """Count a refused request by the code of its problem document."""
        self._refusals.labels(self._codes.value(code)).inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._exposed)


class RunMetrics:
    """The metrics of one worker, in a registry of its own unless one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        is_shared = registry is not None  # with the gateway of the process, which counts the connections of the bus
        self.registry = registry = registry or new_registry()
        self.bus = None if is_shared else BusConnections(registry)
        self.running = Gauge("magent2_runs_running", "Runs in progress", multiprocess_mode="livesum", registry=registry)
        self._runs = Counter(
            "magent2_runs", "Attempts at runs that have ended", ("agent", "outcome"), registry=registry
        )
        self._seconds = agent_histogram("run", "Duration of an attempt at a run", registry)
        self._first_token = agent_histogram("first_token", "Time from the start of a run to its first token", registry)
        self._mail_wait = agent_histogram("mail_wait", "Time that mail waited for its first attempt", registry)
        self.turns = Counter("magent2_turns", "Model calls that were answered", registry=registry)
        self._tokens = Counter("magent2_model_tokens", "Tokens that models reported", ("type",), registry=registry)
        self._cost = Counter("magent2_model_cost_usd", "Cost of model calls with a known price", registry=registry)
        self._unpriced = Counter(
            "magent2_model_calls_unpriced", "Model calls whose price is unknown", registry=registry
        )
        self._budgets = Counter("magent2_budgets_reached", "Runs paused by a budget", ("budget",), registry=registry)
        self._calls = Counter("magent2_tool_calls", "Tool calls", ("tool", "outcome"), registry=registry)
        self._tools = BoundedLabel()
        self.sends = Counter("magent2_run_sends", "Messages that runs have sent", registry=registry)
        self._sweeps = Histogram(
            "magent2_sweep_seconds", "Duration of a sweep of the log", buckets=RUN_BUCKETS_S, registry=registry
        )
        self._visited = Counter(
            "magent2_sweep_conversations", "Conversations that sweeps have looked at", registry=registry
        )
        self._swept = Counter("magent2_swept", "What sweeps have removed from the log", ("kind",), registry=registry)
        self._slots = Counter("magent2_schedule_slots", "Slots of schedules", ("outcome",), registry=registry)
        self._deliveries = Counter(
            "magent2_deliveries",
            "Attempts to deliver to webhooks and connectors",
            ("kind", "outcome"),
            registry=registry,
        )
        self._slot_lateness = Histogram(
            "magent2_schedule_late_seconds",
            "Time from a slot of a schedule until its message was sent",
            buckets=RUN_BUCKETS_S,
            registry=registry,
        )
        self._circuits = Gauge(
            "magent2_model_circuit_open",
            "1 while a model provider does not answer and calls to it are suspended",
            ("provider",),
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._providers = BoundedLabel()
        self._tool_threads = Gauge(
            "magent2_tool_threads",
            "Threads that run synchronous tools, and calls that wait for one",
            ("state",),
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._processes = Gauge(
            "magent2_sandbox_processes",
            "Processes that run Python blocks, and blocks that wait for one",
            ("state",),
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._usage: tuple[tuple[Gauge, PlaceUsage], ...] = ()
        self.claimed = latency_histogram("bus_claim", "Time until the bus answered a claim of lanes", registry).observe
        self.appended = latency_histogram("bus_append", "Time until the bus accepted a run's append", registry).observe

    def count_run(self, agent: str, outcome: str, taken_s: float) -> None:
        self._runs.labels(agent, outcome).inc()
        self._seconds.labels(agent).observe(taken_s)

    def observe_first_token(self, agent: str, after_s: float) -> None:
        self._first_token.labels(agent).observe(after_s)

    def observe_mail_wait(self, agent: str, waited_s: float) -> None:
        self._mail_wait.labels(agent).observe(waited_s)

    def count_cost(self, cost_usd: float, unpriced_calls: int) -> None:
        self._cost.inc(cost_usd)
        self._unpriced.inc(unpriced_calls)

    def count_budgets_reached(self, *kinds: str) -> None:
        for kind in kinds:
            self._budgets.labels(kind).inc()

    def count_turn(self, input_tokens: int | None, output_tokens: int | None) -> None:
        self.turns.inc()
        self._tokens.labels("input").inc(input_tokens or 0)
        self._tokens.labels("output").inc(output_tokens or 0)

    def count_sweep(self, visited: int, removed: Mapping[str, int], taken_s: float) -> None:
        """Count a sweep that has ended. `removed` has the numbers by kind: tokens, events, blobs …"""
        self._sweeps.observe(taken_s)
        self._visited.inc(visited)
        for kind, count in removed.items():
            self._swept.labels(kind).inc(count)

    def count_slots(self, outcome: str, count: int = 1, late_s: float | None = None) -> None:
        """Count slots of schedules that fired, failed or were skipped, and how late one was."""
        self._slots.labels(outcome).inc(count)
        if late_s is not None:
            self._slot_lateness.observe(max(0.0, late_s))

    def count_delivery(self, kind: str, outcome: str) -> None:
        """Count an attempt of the relay to deliver a message or a notification."""
        self._deliveries.labels(kind, outcome).inc()

    def count_tool_call(self, tool: str, known: bool, failed: bool) -> None:
        name = self._tools.value(tool) if known else UNKNOWN_TOOL
        self._calls.labels(name, "error" if failed else "success").inc()

    def read_usage_of(self, tool_threads: PlaceUsage, processes: PlaceUsage) -> None:
        """Read the use of tool threads and of sandbox processes whenever the metrics are requested."""
        self._usage = ((self._tool_threads, tool_threads), (self._processes, processes))
        for gauge, places in self._usage:
            gauge.labels("busy").set_function(partial(getattr, places, "busy"))
            gauge.labels("waiting").set_function(partial(getattr, places, "waiting"))

    def copy_usage(self) -> None:
        """Set the values of `read_usage_of` now, for processes whose metrics other processes read."""
        if self.bus is not None:
            self.bus.copy_usage()
        for gauge, places in self._usage:
            gauge.labels("busy").set(places.busy)
            gauge.labels("waiting").set(places.waiting)

    def set_circuit(self, provider: str, is_open: bool) -> None:
        """Note that the circuit of a provider has opened or closed."""
        self._circuits.labels(self._providers.value(provider)).set(is_open)


def parse_address(text: str) -> tuple[str, int]:
    """Parse the value of `--metrics`. `9100` listens on this machine only, `0.0.0.0:9100` on all addresses."""
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise SettingsError(f"--metrics must be PORT or HOST:PORT, with a port from 0 to {PORT_MAX}, not {text[:40]!r}")
    return host.strip("[]") or HOST, int(port)


@contextmanager
def metrics_endpoint(address: tuple[str, int] | None) -> Iterator[tuple[RunMetrics | None, str]]:
    """Serve `/metrics` for a process without a gateway; gives the metrics and their URL, or nothing without address."""
    if address is None:
        yield None, ""
        return
    host, port = address
    metrics = RunMetrics()
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another port with --metrics,"
            " or 0 for any free port"
        ) from error
    try:
        yield metrics, f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
