"""Compactions in simulated runs: some runs are compacted before every turn, and their summaries hold what they cover.

The summary of the simulated model is JSON: the results and steers of the items that it replaces, and of the summary
before. So the model knows them later, and the oracle checks that nothing gets lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from magent2.runner.journal.compaction import SUMMARY_INSTRUCTIONS, RequestFitter
from magent2.sessions.folds import SUMMARY_HEADING
from magent2.sessions.history import CompactionReason
from tests.simulation.calls import stable_choice
from tests.support.journaled_runs import is_block

CONTEXT_MAX = 1_000_000  # tokens; simulated requests are compacted by choice and not by their size
ONE_IN = 2  # of so many runs, one is compacted
SUMMARY_BEGINNING = SUMMARY_INSTRUCTIONS[:40]

Items = Sequence[Mapping[str, Any]]


def is_compacted(envelope_id: str) -> bool:
    return stable_choice(f"context of {envelope_id}", ONE_IN) == 0


@contextmanager
def compacted_runs() -> Iterator[None]:
    """Compact the requests of some runs before every turn, at the first place that is possible."""

    def reason(fitter: RequestFitter) -> CompactionReason | None:
        return "size" if is_compacted(fitter._journal.context.envelope.id) else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestFitter, "_reason", reason)
        patch.setattr("magent2.runner.journal.compaction.WORTH_SHARE", 0)
        patch.setattr(
            "magent2.runner.journal.compaction.rendered", lambda items, max_chars: [json.dumps(item) for item in items]
        )
        yield


def is_summary_request(instructions: str | None) -> bool:
    return (instructions or "").startswith(SUMMARY_BEGINNING)


def summary_of(request: Items, own: str) -> str:
    """The answer to a summary request. Of the results, those of the run that answers the mail `own` matter."""
    before, _, text = str(request[0]["content"]).partition("The conversation to be summarised:\n\n")
    items = [json.loads(line) for line in text.split("\n\n")]
    so_far = before.removeprefix("The summary so far:\n\n").strip()  # of the parts that earlier calls got
    known = json.loads(so_far) if so_far else told_by_summary(items)
    results = {
        item["call_id"]: item["output"]
        for item in items
        if item.get("type") == "function_call_output" and item["call_id"].startswith(own)
    }
    steers = [item["content"] for item in items if is_block(item)]
    return json.dumps({"results": {**known["results"], **results}, "steers": [*known["steers"], *steers]})


def told_by_summary(request: Items) -> dict[str, Any]:
    """The results and steers in the summary that a request begins with."""
    text = str(request[0].get("content", "")) if request else ""
    if not text.startswith(SUMMARY_HEADING):
        return {"results": {}, "steers": []}
    told: dict[str, Any] = json.loads(text.partition("\n\n")[2])
    return told
