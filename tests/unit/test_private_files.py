"""Folders of the log are on disk before anything is acknowledged in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.private_files import make_folder
from tests.support.disk_record import Created, FolderSynced, recorded

OTHER_UID = 65_534

# Makes a folder in a folder that it may write to and not read. Root may read any folder, so it becomes another user
# first. The interpreter may be in a folder that only root can enter, so that comes after the imports.
MAKE = """
import logging, os, sys
from pathlib import Path
from magent2.private_files import make_folder
if os.geteuid() == 0:
    os.setgroups([])
    os.setresuid(*[int(sys.argv[1])] * 3)
logging.basicConfig()
make_folder(Path(sys.argv[2]))
"""


@pytest.fixture
def unreadable_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="magent2-unreadable-"))
    if os.geteuid() == 0:
        os.chown(folder, OTHER_UID, OTHER_UID)
    folder.chmod(0o300)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_the_parents_of_new_folders_are_synced(tmp_path: Path) -> None:
    with recorded(tmp_path) as record:
        make_folder(tmp_path / "data" / "logs")
        make_folder(tmp_path / "data" / "logs")

    created = [Created("data", 0), Created("data/logs", 0)]
    assert sorted(record.events, key=str) == [*created, FolderSynced("."), FolderSynced("data")]
    assert record.events[:2] == created


def test_a_folder_whose_parent_cannot_be_synced_is_made_with_a_warning(unreadable_folder: Path) -> None:
    folder = unreadable_folder / "data"

    made = subprocess.run(
        [sys.executable, "-c", MAKE, str(OTHER_UID), str(folder)], check=True, capture_output=True, text=True
    )

    assert "may be lost if the power fails" in made.stderr
    unreadable_folder.chmod(0o700)
    assert folder.is_dir()
