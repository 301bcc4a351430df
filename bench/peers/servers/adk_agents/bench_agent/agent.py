"""google-adk: an agent of a resumable app; `adk api_server` serves it with its sessions in SQLite."""

from __future__ import annotations

import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.integrations.openai import OpenAILlm

sys.path.append(str(Path(__file__).parents[2]))

from work import INSTRUCTIONS, MODEL, note

root_agent = LlmAgent(name="bench_agent", model=OpenAILlm(model=MODEL), instruction=INSTRUCTIONS, tools=[note])
app = App(
    name="bench_agent",
    root_agent=root_agent,
    resumability_config=ResumabilityConfig(is_resumable=True),
)
