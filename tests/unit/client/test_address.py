from __future__ import annotations

from pathlib import Path

import pytest

from magent2.client.transport import GatewayAddress
from magent2.errors import SettingsError
from magent2.settings import Settings
from magent2.token import TokenFile

TOKEN = "given-given-given-given"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.read({"MAGENT2_DATA_DIR": str(tmp_path)})


def test_by_default_it_is_the_gateway_of_this_machine_with_its_token(settings: Settings) -> None:
    token = TokenFile.within(settings.data_dir).obtain()

    assert GatewayAddress.find(None, None, settings) == GatewayAddress("http://127.0.0.1:8700", token)


def test_the_token_file_is_never_sent_elsewhere(settings: Settings) -> None:
    TokenFile.within(settings.data_dir).obtain()

    assert GatewayAddress.find("http://example.org:8700", None, settings).token is None
    assert GatewayAddress.find("http://localhost:1/", None, settings).token is not None
    assert GatewayAddress.find("http://[::1]:1", None, settings).token is not None


def test_what_is_given_goes_before_the_address_and_that_before_the_variable(tmp_path: Path) -> None:
    variables = {"MAGENT2_DATA_DIR": str(tmp_path), "MAGENT2_TOKEN": "variable-variable", "MAGENT2_URL": "http://v:1"}
    settings = Settings.read(variables)
    printed = "http://127.0.0.1:8700/#token=carried-carried-carried"

    assert GatewayAddress.find(printed, TOKEN, settings).token == TOKEN
    assert GatewayAddress.find(printed, None, settings).token == "carried-carried-carried"
    assert GatewayAddress.find(None, None, settings) == GatewayAddress("http://v:1", "variable-variable")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8700", "ftp://x", "http://", "http://x:port", "http://[::1", "http://u:p@x", "http://x?a=b"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is not the URL of a gateway"):
        GatewayAddress.find(url or " ", TOKEN)


def test_secrets_do_not_print() -> None:
    with pytest.raises(SettingsError) as refused:
        GatewayAddress.find("http://user:sesame@x", TOKEN)  # pragma: allowlist secret

    assert "sesame" not in str(refused.value)
    assert TOKEN not in repr(GatewayAddress.find("http://x", TOKEN))
