"""Which provider, server and key a model's name stands for. Pure, and without the SDK.

| name | provider |
|---|---|
| `gpt-5`, `openai/gpt-5`, `meta-llama/Llama-4` | the default one: `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `OPENAI_API` |
| `anthropic/NAME` and others of `ANY_LLM_KEYS`, `any-llm/PROVIDER/NAME` | through any-llm |
| `litellm/PROVIDER/NAME` | through LiteLLM |
| `mine/NAME` | the table `[provider.mine]` of the agents file |
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from magent2.errors import SettingsError
from magent2.roster.spec import MODEL_TIMEOUT_S, AgentSpec, Api, Provider, Roster
from magent2.runner.config import base_url_of
from magent2.tools.builtins import OPENAI_HOST

Protocol: TypeAlias = Literal["openai", "any-llm", "litellm"]

OPENAI: Final = "openai"
ANY_LLM: Final = "any-llm"
LITELLM: Final = "litellm"
OPENAI_KEY = "OPENAI_API_KEY"
KEYLESS = "none"  # in place of a key, for servers that need none; the clients refuse an empty one

# The providers of any-llm whose names are prefixes of models, and the variables of their keys. An empty variable: they
# need no key, or find their credentials elsewhere. Any other one is named `any-llm/PROVIDER/NAME`.
ANY_LLM_KEYS: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "azure": "AZURE_API_KEY",
    "azureopenai": "AZURE_OPENAI_API_KEY",
    "bedrock": "",
    "cerebras": "CEREBRAS_API_KEY",
    "cohere": "COHERE_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "fireworks": "FIREWORKS_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "groq": "GROQ_API_KEY",
    "huggingface": "HF_TOKEN",
    "llamacpp": "",
    "lmstudio": "",
    "mistral": "MISTRAL_API_KEY",
    "moonshot": "MOONSHOT_API_KEY",
    "ollama": "",
    "openrouter": "OPENROUTER_API_KEY",
    "perplexity": "PERPLEXITY_API_KEY",
    "together": "TOGETHER_API_KEY",
    "vertexai": "",
    "vllm": "",
    "watsonx": "WATSONX_API_KEY",
    "xai": "XAI_API_KEY",
}

# The module that a protocol needs, and the extra that installs it.
EXTRAS: Mapping[Protocol, tuple[str, str]] = {ANY_LLM: ("any_llm", "any-llm"), LITELLM: ("litellm", "litellm")}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One provider with its address and its key. The repr omits the key.

    `key_variable` is where the key comes from, or should; empty if none is needed. `api` is None if it is to be found
    out: only for servers with an API of OpenAI, at an address that is not OpenAI's.
    """

    provider: str
    protocol: Protocol
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    key_variable: str = ""
    api: Api | None = None
    timeout_s: float = MODEL_TIMEOUT_S  # how long its models may send nothing

    @property
    def is_openai(self) -> bool:
        """Whether this is OpenAI itself."""
        return self.protocol == OPENAI and is_openai_url(self.base_url)

    @property
    def identity(self) -> tuple[str, str]:
        """A name for people, and what tells two endpoints of that name apart."""
        shown = urlsplit(self.base_url or "").hostname or self.provider
        key = hashlib.sha256((self.api_key or "").encode()).hexdigest()
        return shown, f"{self.provider} {self.base_url or ''} {key}"

    @property
    def missing_key(self) -> str | None:
        """The variable that this endpoint needs and that is not set."""
        return self.key_variable if self.key_variable and self.api_key is None else None


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model of an agent: its name as the team has it, its endpoint, and its name there. None: the SDK's default.

    `problem` says why the name stands for nothing.
    """

    name: str
    endpoint: Endpoint
    model: str | None
    problem: str | None = None

    def describe(self) -> str:
        """The model, its provider and where its key comes from, without the key."""
        endpoint = self.endpoint
        key = f"key from {endpoint.key_variable}" if endpoint.key_variable else "no key needed"
        where = endpoint.base_url or endpoint.provider
        if endpoint.protocol != OPENAI:
            how = f"through {endpoint.protocol}"
        elif endpoint.api or endpoint.is_openai:
            how = f"API {endpoint.api or 'responses'}"
        else:
            how = "its API is found out"
        return f"{self.name or 'the default model'} at {where} ({how}, {key})"

    def fault(self) -> str | None:
        """Why this model cannot be used here, with what to do; None if it can."""
        if self.problem is not None:
            return f"model {self.name[:80]!r}: {self.problem}"
        module, extra = EXTRAS.get(self.endpoint.protocol, ("", ""))
        if module and find_spec(module) is None:
            return f"model {self.name[:80]!r} needs an extra; install it with: pip install 'magent2-runtime[{extra}]'"
        if (variable := self.endpoint.missing_key) is not None:
            shown = f"model {self.name[:80]!r}" if self.name else "the default model"
            return f"{shown} needs {variable}, which is not set"
        return None


@dataclass(frozen=True, slots=True)
class OwnServer:
    """What an agent itself says about its provider."""

    base_url: str | None = None
    api_key_env: str | None = None
    api: Api | None = None
    timeout_s: float | None = None

    @classmethod
    def of(cls, agent: AgentSpec) -> OwnServer:
        return cls(agent.base_url, agent.api_key_env, agent.api, agent.model_timeout_s)

    @property
    def is_set(self) -> bool:
        """Whether the agent names a server. A time limit is not one."""
        return replace(self, timeout_s=None) != OwnServer()


class ModelCatalogue:
    """Finds the endpoints of models.

    Without a key or a URL of the default provider, `OPENAI_API_KEY` and `OPENAI_BASE_URL` of `variables` are used.
    `providers` are the tables of the agents file.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        api: Api | None = None,
        variables: Mapping[str, str] | None = None,
        providers: Mapping[str, Provider] | None = None,
    ) -> None:
        self._variables = os.environ if variables is None else variables
        self._api_key = api_key or self._variable(OPENAI_KEY)
        self._base_url = base_url or base_url_of(self._variables)
        self._api: Api | None = api
        self.providers = providers or {}

    def find(self, name: str | None, own: OwnServer | None = None) -> ModelTarget:
        """Return what a model's name stands for. `own` is what its agent says about the provider."""
        own = own or OwnServer()
        prefix, _, rest = (name or "").partition("/")
        if name is None or not rest:
            return ModelTarget(name or "", self._default(own), name)
        if prefix in self.providers and prefix != OPENAI:
            endpoint = self._described(prefix, self.providers[prefix], own)
            lost = endpoint.protocol == OPENAI and endpoint.base_url is None
            problem = f"its provider has no address; add 'base_url' to [provider.{prefix}]" if lost else None
            return ModelTarget(name, endpoint, rest, problem)
        # With `api`, the address of an agent is one of OpenAI's APIs, and the whole name is that of a model there.
        if own.api is None and prefix in (*EXTRAS, *ANY_LLM_KEYS):
            return self._foreign_model(name, prefix, rest, own)
        return ModelTarget(name, self._default(own), rest if prefix == OPENAI else name)

    def _foreign_model(self, name: str, prefix: str, rest: str, own: OwnServer) -> ModelTarget:
        """A model through any-llm or LiteLLM."""
        if prefix not in EXTRAS:
            return ModelTarget(name, self._foreign(prefix, ANY_LLM, own), rest)
        provider, _, model = rest.partition("/")
        problem = None if model else f"it names no provider; write '{prefix}/PROVIDER/NAME'"
        return ModelTarget(name, self._foreign(provider, prefix, own), model, problem)

    def find_all(self, models: Sequence[str], own: OwnServer | None = None) -> list[ModelTarget]:
        """Return what the models of an agent stand for. Without a name it is the SDK's default model."""
        return [self.find(name, own) for name in models or (None,)]

    def team(self, roster: Roster, default: str | None = None) -> Iterator[tuple[str, list[ModelTarget]]]:
        """All agents of a roster with their models, that of summaries too. `default` is for agents that name none."""
        names = (default,) if default else ()
        for agent in {name: one for part in roster.scenarios.values() for name, one in part.agents.items()}.values():
            own, summary = OwnServer.of(agent), agent.summary_model or roster.context.get("summary_model")
            yield (
                agent.name,
                [*self.find_all(agent.model_names or names, own), *([self.find(summary, own)] if summary else ())],
            )

    @property
    def has_default(self) -> bool:
        """Whether the default provider can be used: it has a key, or an address that is not OpenAI's."""
        return self._default(OwnServer()).missing_key is None

    def _default(self, own: OwnServer) -> Endpoint:
        table = self.providers.get(OPENAI, Provider(OPENAI))
        base_url = own.base_url or self._base_url or table.base_url
        variable = own.api_key_env or table.api_key_env
        if variable:
            key = self._variable(variable)
        elif not is_openai_url(own.base_url) and own.base_url != self._base_url:
            key = None  # the key of the default provider is not sent to the address of an agent
        else:
            key = self._api_key
        needed = variable or (OPENAI_KEY if is_openai_url(base_url) else "")
        timeout_s = own.timeout_s or table.timeout_s or MODEL_TIMEOUT_S
        return Endpoint(OPENAI, OPENAI, base_url, key, needed, own.api or self._api or table.api, timeout_s)

    def _described(self, name: str, table: Provider, own: OwnServer) -> Endpoint:
        """The endpoint of a table. If any-llm knows its name, it is called through any-llm, unless `api` is set."""
        base_url, api = own.base_url or table.base_url, own.api or table.api
        if name in ANY_LLM_KEYS and api is None:
            variable = own.api_key_env or table.api_key_env
            return self._foreign(
                name, ANY_LLM, OwnServer(base_url, variable, timeout_s=own.timeout_s or table.timeout_s)
            )
        variable = own.api_key_env or ""
        if not variable and base_url == table.base_url:  # the key of the table is not sent to another address
            variable = table.api_key_env or ANY_LLM_KEYS.get(name, "")
        timeout_s = own.timeout_s or table.timeout_s or MODEL_TIMEOUT_S
        return Endpoint(name, OPENAI, base_url, self._variable(variable), variable, api, timeout_s)

    def _foreign(self, provider: str, protocol: str, own: OwnServer) -> Endpoint:
        """An endpoint with an API of its own. With an address that is given, its usual key is used but not needed."""
        usual = ANY_LLM_KEYS.get(provider, "")
        key = self._variable(own.api_key_env or usual)
        needed = own.api_key_env or ("" if own.base_url else usual)
        through: Protocol = LITELLM if protocol == LITELLM else ANY_LLM
        timeout_s = own.timeout_s or MODEL_TIMEOUT_S
        return Endpoint(provider, through, own.base_url, key, needed, timeout_s=timeout_s)

    def _variable(self, name: str) -> str | None:
        return self._variables.get(name, "").strip() or None if name else None


def is_openai_url(url: str | None) -> bool:
    """Whether an address is that of OpenAI itself. None is the client's default, which is."""
    return url is None or urlsplit(url).hostname == OPENAI_HOST


def check_models(catalogue: ModelCatalogue, roster: Roster, default: str | None = None) -> list[str]:
    """Return one sentence for each agent and model that cannot be used here."""
    return [
        f"agent {agent!r}: {fault}"
        for agent, targets in catalogue.team(roster, default)
        for target in targets
        if (fault := target.fault()) is not None
    ]


def check_choice(roster: Roster, name: str) -> None:
    """Raise `SettingsError` if the settings of a session name a model of a provider that the team does not use.

    Otherwise any user could have a worker call, and pay for, every provider whose key is in its environment.
    """
    agents = [agent for part in roster.scenarios.values() for agent in part.agents.values()]
    used = {_provider_in(model) for agent in agents for model in agent.model_names}
    if (provider := _provider_in(name)) and provider not in used and provider not in roster.providers:
        raise SettingsError(f"model {name[:80]!r} belongs to a provider that the team does not use; name another model")


def _provider_in(name: str) -> str:
    """The provider that the prefix of a name selects; empty for the default one."""
    prefix, _, rest = name.partition("/")
    if rest and prefix in EXTRAS:
        return f"{prefix}/{rest.partition('/')[0]}"
    return prefix if rest and prefix in ANY_LLM_KEYS else ""


def names_provider(catalogue: ModelCatalogue, roster: Roster, default: str | None = None) -> bool:
    """Whether an agent of the team has a model that is not one of the default provider."""
    own = any(OwnServer.of(agent).is_set for part in roster.scenarios.values() for agent in part.agents.values())
    targets = (target for _, found in catalogue.team(roster, default) for target in found)
    return own or any(target.endpoint.provider != OPENAI for target in targets)
