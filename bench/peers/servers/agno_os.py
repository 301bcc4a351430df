"""agno: an agent served by AgentOS, with a checkpoint after each batch of tool calls.

On SQLite, or with BENCH_DATABASE_URL on PostgreSQL. There, runs in the background go through the durable queue, which
starts a run again whose process has died.
"""

from __future__ import annotations

import os

from agno.agent import Agent
from agno.db.postgres import PostgresDb
from agno.db.sqlite import SqliteDb
from agno.job_queue.config import QueueConfig
from agno.models.openai import OpenAIResponses
from agno.os import AgentOS
from work import INSTRUCTIONS, MODEL, note

url = os.environ.get("BENCH_DATABASE_URL")
agent = Agent(
    id="bench",
    name="bench",
    model=OpenAIResponses(id=MODEL),
    instructions=INSTRUCTIONS,
    tools=[note],
    db=PostgresDb(db_url=url) if url else SqliteDb(db_file="agno.db"),
    add_history_to_context=True,
    checkpoint="tool-batch",
    telemetry=False,
)
# The default is one attempt: a run whose process has died fails. The default concurrency is 32.
queue = QueueConfig(durable=True, max_attempts=3, max_concurrency=64) if url else None
agent_os = AgentOS(id="bench", agents=[agent], db=agent.db, queue=queue, telemetry=False)
app = agent_os.get_app()

if __name__ == "__main__":
    agent_os.serve(app=app, host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), reload=False, access_log=False)
