"""The token file of a gateway."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from magent2.errors import SettingsError
from magent2.token import TokenFile, check_token


def test_a_token_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = TokenFile.within(tmp_path / "new" / "folder")

    token = file.obtain()

    assert file.obtain() == token == file.read()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert list(file.path.parent.iterdir()) == [file.path]


def test_processes_that_start_together_get_one_token(tmp_path: Path) -> None:
    file = TokenFile.within(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(lambda _: file.obtain(), range(32)))

    assert len(tokens) == 1


def test_rotating_replaces_it(tmp_path: Path) -> None:
    file = TokenFile.within(tmp_path)
    before = file.obtain()

    after = file.rotate()

    assert after != before
    assert file.read() == after
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_there_is_none_before_it_is_made(tmp_path: Path) -> None:
    assert TokenFile.within(tmp_path).read() is None


@pytest.mark.parametrize("token", ["", "short", "with spaces in the middle", "ünïcödé-ünïcödé-ünïcödé", "x" * 513])
def test_what_does_not_fit_into_a_header_or_is_easily_guessed_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="a token has"):
        check_token(token)


@pytest.mark.parametrize("content", [b"short\n", b"\xff\xfe" * 20])
def test_a_file_that_holds_no_token_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    file = TokenFile.within(tmp_path)
    file.path.write_bytes(content)

    with pytest.raises(SettingsError):
        file.read()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(SettingsError, match="cannot be"):
        TokenFile.within(tmp_path / "taken" / "folder").obtain()
