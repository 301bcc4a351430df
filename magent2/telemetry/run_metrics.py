"""The figures of a worker. Agents are those it serves, outcomes and tools those that exist; ids are no labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from magent2.telemetry.metrics import Names, latency, new_registry

RUN_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
UNKNOWN_TOOL = "unknown"  # a name that a model or a client has made up


class RunMetrics:
    """The figures of one worker, in a registry of its own unless another one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or new_registry()
        self.running = Gauge("magent2_runs_running", "Runs under way", registry=registry)
        self._runs = Counter(
            "magent2_runs", "Attempts at runs that have ended", ("agent", "outcome"), registry=registry
        )
        self._seconds = _by_agent("run", "Time of an attempt at a run", registry)
        self._first_token = _by_agent("first_token", "Time from the start of a run to its first token", registry)
        self._waited = _by_agent("mail_wait", "Time that mail waited for its first attempt", registry)
        self.turns = Counter("magent2_turns", "Model calls that were answered", registry=registry)
        self._tokens = Counter("magent2_model_tokens", "Tokens that models have counted", ("type",), registry=registry)
        self._calls = Counter("magent2_tool_calls", "Calls of tools", ("tool", "outcome"), registry=registry)
        self._tools = Names()
        self.sends = Counter("magent2_run_sends", "Messages that runs have sent", registry=registry)
        self.claimed = latency("bus_claim", "Time until the bus has answered a claim of lanes", registry).observe
        self.appended = latency("bus_append", "Time until the bus has taken what a run writes", registry).observe

    def ended(self, agent: str, outcome: str, taken_s: float) -> None:
        self._runs.labels(agent, outcome).inc()
        self._seconds.labels(agent).observe(taken_s)

    def said_first_token(self, agent: str, after_s: float) -> None:
        self._first_token.labels(agent).observe(after_s)

    def waited(self, agent: str, waited_s: float) -> None:
        self._waited.labels(agent).observe(waited_s)

    def answered(self, tokens_in: int | None, tokens_out: int | None) -> None:
        self.turns.inc()
        self._tokens.labels("input").inc(tokens_in or 0)
        self._tokens.labels("output").inc(tokens_out or 0)

    def called(self, tool: str, known: bool, failed: bool) -> None:
        name = self._tools.of(tool) if known else UNKNOWN_TOOL
        self._calls.labels(name, "error" if failed else "success").inc()


def _by_agent(name: str, told: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"magent2_{name}_seconds", told, ("agent",), buckets=RUN_BUCKETS_S, registry=registry)
