"""The folder that the processes under one supervisor share: metrics, counts of open connections, process ids."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from magent2.errors import SettingsError
from magent2.private_files import FILE_MODE, make_folder

FOLDER_PREFIX = "supervisor-"
COUNTS_FILE = "counts"
LOCK_FILE = "lock"


class SharedFolder:
    """A folder of one supervisor in the data folder. It holds nothing that a later start needs."""

    def __init__(self, data_dir: Path) -> None:
        """Create the folder. Those of supervisors that were killed are removed: their locks are free."""
        try:
            make_folder(data_dir)
            for old in data_dir.glob(f"{FOLDER_PREFIX}*"):
                _remove_if_abandoned(old)
            self.path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=data_dir))
            self._lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise SettingsError(
                f"cannot write to the data folder {data_dir} ({error.strerror});"
                " set MAGENT2_DATA_DIR to a folder that you can write to"
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # its supervisor is just creating or removing it, or it belongs to another user
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # its supervisor runs
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
