"""What a model's name stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magent2.errors import SettingsError
from magent2.roster.spec import AgentSpec, Provider, Roster
from magent2.runner.providers import catalogue as module
from magent2.runner.providers.catalogue import ModelCatalogue, OwnServer, check_choice, check_models, names_provider
from tests.support.team import roster

LOCAL = "http://127.0.0.1:8000/v1"
TABLES = {
    "mine": Provider("mine", LOCAL, "MINE_KEY", "chat"),
    "groq": Provider("groq", "http://127.0.0.1:2"),
    "xai": Provider("xai", "http://127.0.0.1:3/v1", api="chat"),
}


def catalogue(**variables: str) -> ModelCatalogue:
    return ModelCatalogue(variables=variables, providers=TABLES)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, ("openai", "openai", None)),
        ("gpt-5", ("openai", "openai", "gpt-5")),
        ("openai/gpt-5", ("openai", "openai", "gpt-5")),
        ("openai/anthropic/claude", ("openai", "openai", "anthropic/claude")),
        ("meta-llama/Llama-4", ("openai", "openai", "meta-llama/Llama-4")),
        ("anthropic/claude", ("any-llm", "anthropic", "claude")),
        ("openrouter/meta/llama", ("any-llm", "openrouter", "meta/llama")),
        ("any-llm/nebius/llama", ("any-llm", "nebius", "llama")),
        ("litellm/anthropic/claude", ("litellm", "anthropic", "claude")),
        ("mine/llama", ("openai", "mine", "llama")),
        ("groq/llama", ("any-llm", "groq", "llama")),
        ("xai/grok", ("openai", "xai", "grok")),
    ],
)
def test_a_name_stands_for_a_provider_and_a_model(name: str | None, found: tuple[str, str, str | None]) -> None:
    target = catalogue().find(name)

    assert (target.endpoint.protocol, target.endpoint.provider, target.model) == found


def test_with_an_api_the_whole_name_goes_to_the_server_of_the_agent() -> None:
    target = catalogue().find("anthropic/claude", OwnServer(LOCAL, api="chat"))

    assert (target.endpoint.protocol, target.endpoint.base_url, target.model) == ("openai", LOCAL, "anthropic/claude")


@pytest.mark.parametrize(
    ("name", "own", "key"),
    [
        ("gpt-5", OwnServer(), "default"),
        ("gpt-5", OwnServer(LOCAL), None),
        ("gpt-5", OwnServer("https://api.openai.com/v1"), "default"),
        ("gpt-5", OwnServer(api_key_env="OTHER"), "other"),
        ("mine/llama", OwnServer(), "of mine"),
        ("anthropic/claude", OwnServer(), "of anthropic"),
        ("anthropic/claude", OwnServer(api_key_env="OTHER"), "other"),
        ("xai/grok", OwnServer(), None),
    ],
)
def test_each_endpoint_gets_its_own_key_only(name: str, own: OwnServer, key: str | None) -> None:
    keys = {
        "OPENAI_API_KEY": "default",  # pragma: allowlist secret
        "OTHER": "other",
        "MINE_KEY": "of mine",
        "ANTHROPIC_API_KEY": "of anthropic",  # pragma: allowlist secret
    }

    assert catalogue(**keys).find(name, own).endpoint.api_key == key


def test_a_key_is_in_no_text() -> None:
    target = catalogue(MINE_KEY="hidden").find("mine/llama")

    assert "hidden" not in f"{target} {target.describe()} {target.endpoint.identity}"
    assert "MINE_KEY" in target.describe()


@pytest.mark.parametrize(
    ("name", "variable"),
    [("gpt-5", "OPENAI_API_KEY"), ("mine/llama", "MINE_KEY"), ("anthropic/claude", "ANTHROPIC_API_KEY")],
)
def test_a_fault_names_the_variable(name: str, variable: str) -> None:
    assert catalogue().find(name).fault() == f"model '{name}' needs {variable}, which is not set"
    assert catalogue(**{variable: "any"}).find(name).fault() is None


@pytest.mark.parametrize("name", ["ollama/llama", "groq/llama", "xai/grok"])
def test_a_server_of_ones_own_needs_no_key(name: str) -> None:
    keyless = ModelCatalogue(variables={"OPENAI_BASE_URL": LOCAL}, providers={**TABLES, "xai": Provider("xai", LOCAL)})

    assert keyless.find(name).fault() is None
    assert keyless.find("gpt-5").fault() is None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)

    assert "pip install 'magent2-runtime[any-llm]'" in str(catalogue().find("ollama/llama").fault())
    assert "pip install 'magent2-runtime[litellm]'" in str(catalogue().find("litellm/ollama/llama").fault())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("litellm/claude", "write 'litellm/PROVIDER/NAME'"), ("lost/model", "add 'base_url' to [provider.lost]")],
)
def test_a_name_that_stands_for_nothing_is_a_fault(name: str, reason: str) -> None:
    lost = ModelCatalogue(variables={"OPENAI_API_KEY": "any"}, providers={"lost": Provider("lost", api="chat")})

    assert reason in str(lost.find(name).fault())


def test_the_key_of_a_table_is_not_sent_to_the_address_of_an_agent() -> None:
    target = catalogue(MINE_KEY="of mine").find("mine/llama", OwnServer("http://127.0.0.1:9/v1"))

    assert (target.endpoint.api_key, target.endpoint.key_variable) == (None, "")


def team(*agents: AgentSpec) -> Roster:
    return Roster({"house": roster(*agents).scenarios["house"]}, default="house")


def test_all_agents_that_cannot_be_served_are_reported() -> None:
    agents = AgentSpec("desk", models=("gpt-5", "anthropic/claude")), AgentSpec("shop")

    assert check_models(catalogue(ANTHROPIC_API_KEY="any"), team(*agents)) == [  # pragma: allowlist secret
        "agent 'desk': model 'gpt-5' needs OPENAI_API_KEY, which is not set",
        "agent 'shop': the default model needs OPENAI_API_KEY, which is not set",
    ]


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (AgentSpec("desk"), False),
        (AgentSpec("desk", model="gpt-5"), False),
        (AgentSpec("desk", model="ollama/llama"), True),
        (AgentSpec("desk", base_url=LOCAL), True),
        (AgentSpec("desk", api_key_env="OTHER"), True),
    ],
)
def test_whether_a_team_names_a_provider(agent: AgentSpec, named: bool) -> None:
    assert names_provider(catalogue(), team(agent)) is named


@pytest.mark.parametrize("name", ["gpt-5", "anthropic/other", "mine/llama", "openai/x", "org/model", "litellm/groq/x"])
def test_a_session_may_choose_models_of_providers_that_the_team_uses(name: str) -> None:
    agents = AgentSpec("desk", model="anthropic/claude"), AgentSpec("shop", model="litellm/groq/llama")

    check_choice(replace(team(*agents), providers={"mine": Provider("mine", LOCAL)}), name)


@pytest.mark.parametrize("name", ["anthropic/claude", "any-llm/openai/x", "litellm/anthropic/x", "ollama/llama"])
def test_a_session_may_not_choose_a_provider_that_the_team_does_not_use(name: str) -> None:
    with pytest.raises(SettingsError, match="a provider that the team does not use"):
        check_choice(team(AgentSpec("desk", model="litellm/groq/llama")), name)
