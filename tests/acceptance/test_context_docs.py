"""The example of docs/context.md keeps the requests of its agent short, with summaries of the model that it names."""

from __future__ import annotations

import re
from pathlib import Path

from magent2.bus.memory import MemoryBus
from magent2.roster.agents_file import load_agents_file
from magent2.runner.config import RunnerConfig
from magent2.runner.journal.compaction import ANSWER_TOKENS, RUNS_COMPACTED, SUMMARY_MAX_TOKENS, UNKNOWN_WINDOW
from magent2.runner.select import select_team
from magent2.sessions.folds import SUMMARY_HEADING
from magent2.tools.builtins import BuiltinTools
from magent2.worker.lane_run import Outcome
from tests.support.forked_processes import ROOT
from tests.support.model_server import ModelServer, Reply
from tests.support.small_context import SmallContext, is_summary_request
from tests.support.team import mail, work
from tests.support.worker_fixture import outputs, stream

PAGE = (ROOT / "docs" / "context.md").read_text()
LONG = "word " * 2_000  # about 2,500 tokens


async def test_the_example_is_compacted_by_the_model_that_it_names(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.S | re.M)
    (tmp_path / "magent2.toml").write_text(text)
    bus, model = MemoryBus(), SmallContext(lambda items: Reply("ok"), window=12_000)
    with ModelServer(model) as server:
        team = load_agents_file(tmp_path / "magent2.toml", ()).roster
        config = RunnerConfig.read({"OPENAI_BASE_URL": server.url, "OPENAI_API": "responses"})
        runner = select_team(team, config=config, builtins=BuiltinTools(), folder=tmp_path)
        for _ in range(6):
            mail(bus, LONG)
            assert await work(bus, runner) is Outcome.ANSWERED
        await runner.aclose()

        summaries = [request["model"] for request in server.requests if is_summary_request(request)]
        answers = [request for request in server.requests if not is_summary_request(request)]

    assert outputs(bus) == ["ok"] * 6
    assert set(summaries) == {"cheap"}
    assert {request["model"] for request in answers} == {"large"}
    assert answers[-1]["input"][0]["content"].startswith(SUMMARY_HEADING)
    assert len([event for event in stream(bus) if event["event"] == "compacted"]) >= 1
    assert (model.refused, model.orphans) == (0, [])
    bus.close()


def test_the_page_has_the_numbers_of_the_code() -> None:
    for number in (RUNS_COMPACTED, ANSWER_TOKENS, SUMMARY_MAX_TOKENS, UNKNOWN_WINDOW):
        assert f"{number:,}" in PAGE
