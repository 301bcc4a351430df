"""The figures of a gateway. Labels are never what a client sent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LABELS_MAX = 200  # values of one label; what comes after them is counted as `other`
OTHER = "other"


def new_registry() -> CollectorRegistry:
    """A registry with the figures of the process: memory, processor time, open files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposed(registry: CollectorRegistry) -> bytes:
    """All figures as Prometheus reads them."""
    return generate_latest(registry)


def latency(name: str, told: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"magent2_{name}_seconds", told, buckets=LATENCY_BUCKETS_S, registry=registry)


class Names:
    """The values of a label whose set nobody here controls: the first so many keep their names."""

    def __init__(self, names_max: int = LABELS_MAX) -> None:
        self._known: set[str] = set()
        self._max = names_max

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._max:
                return OTHER
            self._known.add(name)
        return name


class Metrics:
    """The figures of one gateway, in a registry of its own unless another one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or new_registry()
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "magent2_requests", "Requests answered", ("route", "method", "status"), registry=registry
        )
        self._latency = Histogram(
            "magent2_request_seconds",
            "Time to the head of the answer",
            ("route",),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._refusals = Counter("magent2_refusals", "Requests refused", ("code",), registry=registry)
        self._codes = Names()
        self.streams_open = Gauge("magent2_streams_open", "Streams that are open now", registry=registry)
        self.events_sent = Counter("magent2_events_sent", "Events sent to readers of streams", registry=registry)
        sends = Counter("magent2_sends", "Messages accepted", ("outcome",), registry=registry)
        self.accepted, self.repeated = sends.labels("accepted"), sends.labels("repeated")
        self.cut_off = Counter(
            "magent2_readers_cut_off", "Readers that were too slow for their stream", registry=registry
        )
        self.delivered = latency("bus_deliver", "Time until the bus has taken a message", registry).observe
        self.lanes = Gauge(
            "magent2_lanes", "Lanes with mail on the bus, at most 1000 per agent", ("state",), registry=registry
        )
        self.workers = Gauge("magent2_workers", "Workers with a lease on the bus", registry=registry)

    def answered(self, route: str, method: str, status: int, taken_s: float) -> None:
        """Count a request. Looking a label up costs more than counting, so each is looked up once."""
        key = (route, method, status)
        found = self._children.get(key)
        if found is None:
            counter = self._requests.labels(route, method, str(status))
            found = self._children[key] = (counter, self._latency.labels(route))
        found[0].inc()
        found[1].observe(taken_s)

    def refused(self, code: str) -> None:
        """Count a refusal by the code of its problem document."""
        self._refusals.labels(self._codes.of(code)).inc()

    def text(self) -> bytes:
        return exposed(self.registry)
