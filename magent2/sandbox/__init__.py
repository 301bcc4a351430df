"""Python blocks: code that a model wrote, run in a sandbox with the agent's tools as functions."""
