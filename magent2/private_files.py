"""Files and folders that only their owner can use: the log, its lock files, backups, exports and the token.

A folder with the set-group-ID bit (`chmod g+s`) is shared on purpose. Its files can be used by its group too.
"""

from __future__ import annotations

import logging
import os
import stat
from itertools import takewhile
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER_MODE, SHARED_FOLDER_MODE = 0o700, 0o2770
FILE_MODE, SHARED_FILE_MODE = 0o600, 0o660


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, on disk. A folder that exists keeps its mode.

    A power failure may lose a folder, with all files in it, until its parent was synced.
    """
    created = list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for path in created:
        try:
            sync(path.parent)
        except OSError as error:  # the parent cannot be read, or its file system does not sync folders
            log.warning("a new folder may be lost if the power fails", extra={"folder": str(path), "error": str(error)})


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_subfolder(folder: Path) -> None:
    """Create a folder for the users of its parent: the owner, and the group of a shared folder."""
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        return
    if folder.parent.stat().st_mode & stat.S_ISGID:
        folder.chmod(SHARED_FOLDER_MODE)


def create_file(path: Path, *, shared: bool = True) -> int:
    """Create a file and return its descriptor. Raises `FileExistsError` for a file or link that exists.

    Without `shared`, the group of a shared folder cannot use it either.
    """
    mode = file_mode(path.parent) if shared else FILE_MODE
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    os.fchmod(handle, mode)  # a umask may have removed the rights of the group
    return handle


def narrow_folder(folder: Path, own_prefixes: tuple[str, ...]) -> None:
    """Narrow a folder if everything in it is ours by its name. A folder that holds other things keeps its mode.

    So a data folder that was set to a home folder or to `/tmp` by mistake changes nothing for others. A folder with the
    sticky bit is for all users, even while it is empty.
    """
    try:
        is_ours = all(entry.name.startswith(own_prefixes) for entry in folder.iterdir())
        if is_ours and not folder.stat().st_mode & stat.S_ISVTX:
            narrow(folder)
    except OSError:  # it does not exist or is out of reach; opening the log reports that
        return


def create_if_missing(path: Path) -> None:
    """Create an empty file, unless there is one. One that exists is not opened: closing it would drop its locks."""
    try:
        os.close(create_file(path))
    except FileExistsError:
        return


def narrow(*paths: Path) -> None:
    """Take the rights of other users away from those of the files and folders that belong to this user.

    Paths that do not exist are skipped. One line of the log names what was changed.
    """
    changed: list[str] = []
    for path in too_wide(*paths):
        try:
            if path.stat().st_uid == os.geteuid():
                path.chmod(_allowed_mode(path))
                changed.append(str(path))
        except FileNotFoundError:  # another process has closed the log, and SQLite has removed the write-ahead log
            continue
        except OSError as error:  # such as a file system without modes; `magent2 doctor` reports it
            log.warning("the mode of a file cannot be changed", extra={"file": str(path), "error": str(error)})
    if changed:
        log.warning("other users could use these files; their modes are narrowed", extra={"files": ", ".join(changed)})


def too_wide(*paths: Path) -> list[Path]:
    """Return the files and folders that users other than the owner can use, except those shared with a group."""
    found: list[Path] = []
    for path in paths:
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o777 & ~_allowed_mode(path):
                found.append(path)
        except OSError:  # it does not exist or is out of reach; the code that opens it reports that
            continue
    return found


def _allowed_mode(path: Path) -> int:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return 0o777 if status.st_mode & stat.S_ISGID else FOLDER_MODE
    return file_mode(path.parent)


def file_mode(folder: Path) -> int:
    """Return the mode of the files in a folder."""
    return SHARED_FILE_MODE if folder.stat().st_mode & stat.S_ISGID else FILE_MODE
