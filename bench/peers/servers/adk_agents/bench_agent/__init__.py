"""The folder of one agent, as `adk api_server` loads it."""

from . import agent  # noqa: TID252 -- the loader of the framework imports the folder as a package of its own

__all__ = ["agent"]
