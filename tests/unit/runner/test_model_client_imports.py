"""What the first run of a process imports: nothing, because a late import blocks the event loop."""

from __future__ import annotations

import subprocess
import sys

# Starts a worker up to its event loop, then uses the client of a model provider as the first run does.
PROGRAM = """
import asyncio, sys
from magent2.cli import server_process

async def first_use():
    from magent2.runner.providers.provider import LoopProvider

    provider = LoopProvider("unused", "http://127.0.0.1:9/v1")
    provider.get_model("gpt-4o")
    for clients in provider._by_loop.values():
        for client in clients.clients.values():
            client.responses, client.chat.completions
    await provider.aclose()

def show_late_imports(worker):
    worker.close()
    before = set(sys.modules)
    asyncio.run(first_use())
    print("late:", *sorted(set(sys.modules) - before))
    show_late_types()

def show_late_types():
    from openai.types.responses import Response
    from pydantic import BaseModel

    built = []
    rebuild = BaseModel.model_rebuild.__func__
    BaseModel.model_rebuild = classmethod(lambda cls, **given: built.append(cls.__name__) or rebuild(cls, **given))
    calls = {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}
    answers = {"type": "message", "content": [{"type": "output_text", "text": "t", "annotations": []}]}
    Response.model_construct(id="r", output=[calls, answers], usage=None)
    print("types:", *built)

server_process.run_on_loop = show_late_imports
server_process.serve_worker([], "demo", None, [], "memory://", None, None)
"""


def test_a_worker_has_imported_the_client_of_the_model_provider_before_its_first_run() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    late, marked, types = done.stdout.partition("late:")[2].partition("types:")

    assert marked
    assert types.split() == []
    assert [name for name in late.split() if name.startswith(("openai", "httpcore2", "h11"))] == []
