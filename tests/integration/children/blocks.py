"""Workers of an agent with Python blocks that kill themselves at a chosen append or tool call.

As `children/journal.py`; a job may also have `call`: the number of the piece of work in which the worker kills itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from agents import Agent

from magent2.bus.connect import connect
from magent2.runner.build import function_tool_of
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sandbox.monty import MontySandbox
from magent2.sandbox.python_tool import PythonTool
from magent2.tools.default_tools import standard_tools
from magent2.tools.interface import RunFacts
from magent2.tools.registry import tool
from magent2.worker.service import WorkerService
from tests.integration.children.journal import KillingEngine, warm_up
from tests.support.processes import await_line, report, settings
from tests.support.worker_fixture import AGENT, LEASE_S, until


def block_agent(sandbox: MontySandbox, effects: Path, die_in: int) -> Agent[Any]:
    @tool
    def work(context: RunFacts, n: int) -> int:
        """Do a piece of work."""
        with effects.open("a") as file:
            file.write(f"{context.conversation_id} {n}\n")
        if n == die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    python = PythonTool(sandbox, [standard_tools().get("chat_send"), work.definition()])
    return Agent(name=AGENT, model="scripted", tools=[function_tool_of(python.definition())])


async def serve(given: dict[str, Any], job: dict[str, Any]) -> None:
    os.environ.update({"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": given["model_url"]})
    engine, sandbox = connect(given["url"]), MontySandbox(processes=1)
    runner = OpenAIAgentsRunner(block_agent(sandbox, Path(given["effects"]), job.get("call", 0)))
    bus = KillingEngine(engine, job["at"], job["after"])
    service = WorkerService(bus, {AGENT: runner}, worker=job["worker"], lease_s=LEASE_S)
    serving = asyncio.create_task(service.run())
    await until(lambda: service.outcomes or serving.done(), deadline_s=30)
    await service.drain()
    await serving
    await sandbox.aclose()
    await engine.aclose()


def main() -> None:
    given = settings()
    asyncio.run(warm_up(given["model_url"]))
    assert threading.active_count() == 1, threading.enumerate()  # or the fork would not be a sound process
    report(ready=True)
    while True:
        job = json.loads(await_line())
        pid = os.fork()
        if pid == 0:
            settings()  # a fork has to say for itself that it ends with its parent
            asyncio.run(serve(given, job))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        report(code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
