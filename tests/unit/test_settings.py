from __future__ import annotations

from pathlib import Path

import pytest

from magent2.errors import SettingsError
from magent2.settings import PAYLOAD_MAX_BYTES, Settings


def test_our_own_variable_beats_the_one_of_redis() -> None:
    environ = {"MAGENT2_BUS_URL": "memory://", "REDIS_URL": "redis://elsewhere"}

    assert Settings.read(environ).bus_url == "memory://"
    assert Settings.read({"REDIS_URL": "redis://elsewhere"}).bus_url == "redis://elsewhere"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Settings.read({"MAGENT2_BUS_URL": " ", "REDIS_URL": ""}).bus_url is None


def test_the_data_folder_can_be_moved(tmp_path: Path) -> None:
    assert Settings.read({"MAGENT2_DATA_DIR": str(tmp_path)}).data_dir == tmp_path
    assert Settings.read({}).data_dir.name == "magent2"


def test_a_password_does_not_print() -> None:
    settings = Settings.read({"REDIS_URL": "redis://:hunter2@host"})  # pragma: allowlist secret

    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("text", ["lots", "-1", "12", str(1 << 40)])
def test_a_cap_that_makes_no_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="MAGENT2_PAYLOAD_MAX_BYTES"):
        Settings.read({"MAGENT2_PAYLOAD_MAX_BYTES": text})


def test_the_cap_can_be_set() -> None:
    assert Settings.read({"MAGENT2_PAYLOAD_MAX_BYTES": "2048"}).payload_max_bytes == 2048
    assert Settings.read({}).payload_max_bytes == PAYLOAD_MAX_BYTES
