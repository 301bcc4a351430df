"""The environment variables that configure the agent. They are read once.

| variable | meaning |
|---|---|
| `OPENAI_API_KEY` | the API key; without it, and without another provider, the echo runner answers |
| `OPENAI_BASE_URL` | the URL of another server with an API of OpenAI; it needs no key |
| `OPENAI_API` | the API of that server, `responses` or `chat`; default: it is found out |
| `AGENT_NAME` | the agent's name and mailbox; default `assistant` |
| `AGENT_MODEL` | the model's name, for example `anthropic/NAME`; default: the SDK's (`docs/models.md`) |
| `AGENT_INSTRUCTIONS`, `AGENT_INSTRUCTIONS_FILE` | the instructions, or the file that holds them; not both |
| `AGENT_TOOLS` | names of tools, separated by commas: any tool that needs no entry in an agents file |
| `AGENT_HISTORY_MAX` | how many earlier runs the model sees; older ones are summarised; 0: none; default: no limit |
| `AGENT_CONTEXT_MAX` | tokens of a request above which it is compacted; default: by the model (`docs/context.md`) |
| `AGENT_SUMMARY_MODEL` | the model that summarises what a request has no room for; default: the agent's own |
| `AGENT_MAX_TURNS` | how often a run may call the model before it fails; default 25 |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from magent2.errors import SettingsError
from magent2.models.address import NAME_MAX_CHARS, is_name
from magent2.roster.spec import Api, check_url

DEFAULT_AGENT = "assistant"
INSTRUCTIONS_MAX_BYTES = 1 << 20
HISTORY_MAX_CHOICES = range(100_001)
CONTEXT_MAX_CHOICES = range(1_000, 100_000_001)  # tokens
MAX_TURNS = 25
MAX_TURNS_CHOICES = range(1, 1001)


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """The configuration of one agent. `repr` omits the key, and the URL, which may contain one.

    `variables` are the variables of the environment: those of the keys of other providers are only known by name.
    """

    agent_name: str = DEFAULT_AGENT
    model: str | None = None
    instructions: str | None = None
    tools: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = field(default=None, repr=False)
    history_max: int | None = None
    max_turns: int = MAX_TURNS
    api: Api | None = None
    context_max: int | None = None
    summary_model: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> RunnerConfig:
        variables = os.environ if environ is None else environ
        return cls(
            agent_name=_agent_name(_value(variables, "AGENT_NAME")),
            model=_value(variables, "AGENT_MODEL"),
            instructions=_instructions(variables),
            tools=_tools(_value(variables, "AGENT_TOOLS")),
            api_key=_value(variables, "OPENAI_API_KEY"),
            base_url=base_url_of(variables),
            api=_api(_value(variables, "OPENAI_API")),
            variables=dict(variables),
            history_max=_number(variables, "AGENT_HISTORY_MAX", HISTORY_MAX_CHOICES),
            context_max=_number(variables, "AGENT_CONTEXT_MAX", CONTEXT_MAX_CHOICES),
            summary_model=_value(variables, "AGENT_SUMMARY_MODEL"),
            max_turns=_number(variables, "AGENT_MAX_TURNS", MAX_TURNS_CHOICES) or MAX_TURNS,
        )


def _value(variables: Mapping[str, str], name: str) -> str | None:
    """The value of a variable. An empty or blank one counts as not set."""
    return variables.get(name, "").strip() or None


def base_url_of(variables: Mapping[str, str]) -> str | None:
    """The address of the default model server, if one is set. The error does not repeat it: it may contain a key."""
    url = _value(variables, "OPENAI_BASE_URL")
    try:
        return None if url is None else check_url(url)
    except ValueError as error:
        raise SettingsError(f"OPENAI_BASE_URL {error}, as in http://127.0.0.1:11434/v1") from None


def _agent_name(name: str | None) -> str:
    if name is None:
        return DEFAULT_AGENT
    if not is_name(name):
        raise SettingsError(
            f"AGENT_NAME {name[:80]!r} is not a valid name: use 1 to {NAME_MAX_CHARS} printable characters"
        )
    return name


def _api(text: str | None) -> Api | None:
    if text is None:
        return None
    for api in get_args(Api):
        if text == api:
            return cast(Api, api)
    raise SettingsError(f"OPENAI_API must be 'responses' or 'chat', not {text[:40]!r}")


def _instructions(variables: Mapping[str, str]) -> str | None:
    text, file = _value(variables, "AGENT_INSTRUCTIONS"), _value(variables, "AGENT_INSTRUCTIONS_FILE")
    if text is not None and file is not None:
        raise SettingsError("AGENT_INSTRUCTIONS and AGENT_INSTRUCTIONS_FILE are both set; keep one of them")
    return text if file is None else _read_instructions(Path(file).expanduser())


def _read_instructions(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(INSTRUCTIONS_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"AGENT_INSTRUCTIONS_FILE {str(path)!r} cannot be read: {error.strerror}") from error
    if len(data) > INSTRUCTIONS_MAX_BYTES:
        raise SettingsError(f"AGENT_INSTRUCTIONS_FILE {str(path)!r} is over {INSTRUCTIONS_MAX_BYTES} bytes")
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise SettingsError(f"AGENT_INSTRUCTIONS_FILE {str(path)!r} is not UTF-8 text") from error


def _number(variables: Mapping[str, str], name: str, choices: range) -> int | None:
    text = _value(variables, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) not in choices:
        raise SettingsError(f"{name} {text[:80]!r} is not valid: use a number from {choices[0]} to {choices[-1]}")
    return int(text)


def _tools(text: str | None) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(name for part in (text or "").split(",") if (name := part.strip())))
    if not chosen:
        return ()
    from magent2.tools.default_tools import known_tools  # a slow import that only agents with tools need

    known = known_tools()
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise SettingsError(
            f"unknown tools in AGENT_TOOLS: {', '.join(repr(name[:80]) for name in unknown)};"
            f" known tools: {', '.join(sorted(known, key=str.casefold))}"
        )
    return chosen
