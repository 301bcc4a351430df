"""LangGraph: the agent of LangChain as a graph. `langgraph dev` serves it from a folder that also has `work.py`."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from work import INSTRUCTIONS, MODEL, note

graph = create_agent(ChatOpenAI(model=MODEL), tools=[note], system_prompt=INSTRUCTIONS)
