from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from magent2.errors import RosterError
from magent2.roster import registry as registry_module
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import FRESH_S, EnvironmentOverride, Registry
from tests.unit.roster.agents_files import PAIR, TOOLS, write_agents_file


def aged(path: Path) -> Path:
    """A file whose time is far enough back to be believed."""
    then = time.time_ns() - int(10 * FRESH_S * 1e9)
    os.utime(path, ns=(then, then))
    return path


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    registry = Registry.of_file(aged(write_agents_file(tmp_path, PAIR)), TOOLS)
    before = registry.roster

    write_agents_file(tmp_path, PAIR + 'model = "m"\n')

    assert registry.reload()
    assert registry.roster.agent(None, "bob").model == "m"
    assert before.agent(None, "bob").model is None


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    path = aged(write_agents_file(tmp_path, PAIR))
    registry = Registry.of_file(path, TOOLS)
    before = registry.roster
    times = path.stat()

    path.write_bytes(b"#" * times.st_size)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert not registry.reload()
    assert registry.roster is before


def test_two_changes_in_one_tick_of_the_clock_are_both_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "FRESH_S", 3600.0)  # a slow machine does not let the file grow old meanwhile
    path = write_agents_file(tmp_path, PAIR + 'model = "m"\n')
    registry = Registry.of_file(path, TOOLS)
    times = path.stat()

    path.write_text(PAIR + 'model = "n"\n')
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert registry.reload()
    assert registry.roster.agent(None, "bob").model == "n"


def test_a_file_that_reads_the_same_is_no_change(tmp_path: Path) -> None:
    registry = Registry.of_file(write_agents_file(tmp_path, PAIR), TOOLS)

    write_agents_file(tmp_path, "# a remark\n" + PAIR)

    assert not registry.reload()


def test_a_bad_file_changes_nothing_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry.of_file(write_agents_file(tmp_path, PAIR), TOOLS)
    before = registry.roster
    write_agents_file(tmp_path, PAIR.replace('"bob"]', '"bop"]'))

    with caplog.at_level(logging.ERROR):
        assert [registry.reload(), registry.reload()] == [False, False]

    assert registry.roster is before
    assert registry.error is not None
    [line] = caplog.records
    assert line.message == "roster not reloaded; the previous one stays in use"
    assert line.__dict__["error"] == "RosterError"
    assert "has no agent 'bop'" in line.__dict__["faults"][0]


def test_a_file_that_was_fixed_is_loaded(tmp_path: Path) -> None:
    registry = Registry.of_file(write_agents_file(tmp_path, PAIR), TOOLS)
    write_agents_file(tmp_path, "nonsense")
    registry.reload()

    write_agents_file(tmp_path, PAIR + 'role = "x"\n')

    assert registry.reload()
    assert registry.error is None


def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    path = write_agents_file(tmp_path, PAIR)
    registry = Registry.of_file(path, TOOLS)

    path.unlink()

    assert not registry.reload()
    assert "cannot be read" in str(registry.error)
    assert registry.roster.agent_names() == ("ann", "bob")


def test_a_change_of_instructions_in_a_file_of_their_own_is_seen(tmp_path: Path) -> None:
    notes = tmp_path / "bob.md"
    notes.write_text("One.")
    registry = Registry.of_file(aged(write_agents_file(tmp_path, PAIR + 'instructions_file = "bob.md"\n')), TOOLS)

    aged(notes)
    registry.reload()
    notes.write_text("Two.")

    assert registry.reload()
    assert registry.roster.agent(None, "bob").instructions == "Two."


def test_instructions_that_were_missing_are_taken_when_they_come(tmp_path: Path) -> None:
    path = write_agents_file(tmp_path, PAIR)
    registry = Registry.of_file(path, TOOLS)
    path.write_text(PAIR + 'instructions_file = "bob.md"\n')
    aged(path)
    assert not registry.reload()

    (tmp_path / "bob.md").write_text("Here.")

    assert registry.reload()
    assert registry.roster.agent(None, "bob").instructions == "Here."


def test_the_environment_stays_over_a_file_that_is_read_again(tmp_path: Path) -> None:
    registry = Registry.of_file(
        write_agents_file(tmp_path, PAIR), TOOLS, override=EnvironmentOverride("bob", model="mine")
    )

    write_agents_file(tmp_path, PAIR + 'model = "theirs"\nrole = "new"\n')

    assert registry.reload()
    assert registry.roster.agent(None, "bob").model == "mine"
    assert registry.roster.agent(None, "bob").role == "new"


def test_the_first_read_must_succeed(tmp_path: Path) -> None:
    with pytest.raises(RosterError):
        Registry.of_file(tmp_path / "none.toml", TOOLS)


def test_a_roster_without_a_file_never_changes() -> None:
    registry = Registry.of(default_roster())

    assert not registry.reload()
    assert registry.roster is default_roster()
