"""Measure what a message and a token cost each process, and what a conversation takes: `make bench-scaling`.

`docs/scaling.md` computes from these figures how many machines a load needs. Gateway, worker and the server of the bus
are processes of their own, and costs are processor time. Prints a table and, as its last line, one JSON object.
`--quick` measures everything once with small counts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from bench.support.gateway.service_scale import new_names
from bench.support.growth.service import Processes, answered_s, processes
from bench.support.growth.store import Store, postgres_store, redis_store, sqlite_store
from bench.support.processes import cpu_s
from bench.support.report import Benchmark, Figures, run

PARTS_OF_SERVICE = ("gateway", "worker", "server")
WORD = "word "


@dataclass(frozen=True, slots=True)
class CostScale:
    """How much is done per measurement."""

    rounds: int
    messages: int
    conversations: int  # that are written to at a time
    words: int  # of a long answer, so as many tokens


FULL = CostScale(rounds=3, messages=640, conversations=64, words=200)
QUICK = CostScale(rounds=1, messages=8, conversations=4, words=10)


Part = Callable[[Figures, CostScale], None]


def measure(engine: str, make_store: Callable[[], AbstractContextManager[Store]]) -> Part:
    def measured(figures: Figures, scale: CostScale) -> None:
        with make_store() as store, processes(store.url, store.server_s) as found:
            short = _message_us(found, scale, WORD)
            long = _message_us(found, scale, WORD * scale.words)
        sizes = _conversation_bytes(make_store, scale)
        for part, first, second in zip(PARTS_OF_SERVICE, short, long, strict=True):
            token = (second - first) / (scale.words - 1)
            figures.add(f"{engine}_{part}_message_us", first - token, "without its tokens")
            figures.add(f"{engine}_{part}_token_us", token)
        for place, size in sizes.items():
            figures.add(f"{engine}_conversation_{place}_bytes", size, "one message and its answer of one token")

    return measured


def _conversation_bytes(make_store: Callable[[], AbstractContextManager[Store]], scale: CostScale) -> dict[str, float]:
    """How much the store grows with each conversation, in a store that has some already and nothing else."""
    with make_store() as store:
        seen = []
        for _ in range(2):
            with processes(store.url, store.server_s) as found:
                run(answered_s(found.gateway, new_names(scale.messages), scale.messages, lambda: ()))
            seen.append(store.sizes())
    before, after = seen
    return {place: (after[place] - before[place]) / scale.messages for place in after}


def _message_us(found: Processes, scale: CostScale, text: str) -> list[float]:
    """Processor time of gateway, worker and server per message, as the median of the rounds."""

    def now() -> tuple[float, ...]:
        return cpu_s(found.gateway.pid), cpu_s(found.worker_pid), found.server_s()

    names = new_names(scale.conversations)
    turns = [run(answered_s(found.gateway, names, scale.messages, now, text)) for _ in range(scale.rounds + 1)]
    return [median(turn[part] for turn in turns[1:]) / scale.messages * 1e6 for part in range(len(PARTS_OF_SERVICE))]


PARTS: dict[str, Part] = {
    "sqlite": measure("sqlite", sqlite_store),
    "redis": measure("redis", redis_store),
    "postgres": measure("postgres", postgres_store),
}
BENCHMARK = Benchmark("bench.scaling", __doc__, {}, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
