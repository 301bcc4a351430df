"""A model with a small context, as an `Answer` of `ModelServer`. It refuses what is too long and checks requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magent2.runner.journal.compaction import SUMMARY_INSTRUCTIONS
from tests.support.model_server import Json, Reply

BYTES_PER_TOKEN = 4
TOO_LONG = "context_length_exceeded: the request has {} tokens, maximum context length is {}"
SUMMARY_BEGINNING = SUMMARY_INSTRUCTIONS[:40]

Say = Callable[[Sequence[Mapping[str, Any]]], Reply]


@dataclass
class SmallContext:
    """Answers with `say`, or with a summary. `window` is the number of tokens that a request may have.

    `orphans` are calls without a result and results without a call that were in a request; `unasked` counts requests
    without a message of a user.
    """

    say: Say
    window: int
    summary: Callable[[str], Reply] = lambda text: Reply(f"Summary of {len(text)} characters.")
    orphans: list[str] = field(default_factory=list)
    unasked: int = 0
    refused: int = 0
    summaries: list[str] = field(default_factory=list)  # the texts that were summarised
    answered: int = 0
    sizes: list[int] = field(default_factory=list)  # in tokens, of the requests that were answered
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Json) -> Reply:
        items = request["input"]
        size = len(json.dumps(request, ensure_ascii=False).encode()) // BYTES_PER_TOKEN
        with self.lock:
            self.orphans += orphans_in(items)
            self.unasked += not any(item.get("role") == "user" for item in items)
            if size > self.window:
                self.refused += 1
                return Reply(TOO_LONG.format(size, self.window), status=400)
            if is_summary_request(request):
                self.summaries.append(items[0]["content"])
                reply = self.summary(items[0]["content"])
            else:
                self.answered += 1
                self.sizes.append(size)
                reply = self.say(items)
        usage = (size, max(1, len(reply.text) // BYTES_PER_TOKEN))
        return reply if reply.status != 200 else Reply(**{**vars(reply), "usage": usage})


def is_summary_request(request: Json) -> bool:
    return str(request.get("instructions") or "").startswith(SUMMARY_BEGINNING)


def orphans_in(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids of calls without a result behind them, and of results without a call before them."""
    open_calls: list[str] = []
    found: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            open_calls.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] in open_calls:
                open_calls.remove(item["call_id"])
            else:
                found.append(f"result {item['call_id']}")
    return [*found, *(f"call {name}" for name in open_calls)]
