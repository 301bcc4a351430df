"""magent2: the runtime that teams of LLM agents live on."""

__version__ = "0.3.0.dev0"
