"""Record what a process writes to the files of one folder, in order: writes, truncations, syncs, directory entries.

SQLite writes through a VFS. The recorder registers one that passes every call on to that of the operating system and
notes those that change a file. It is registered with `ctypes` in the SQLite library that the module `sqlite3` uses, so
no compiler is needed. What Python code does to files itself goes through functions of `os`, which are wrapped for as
long as the record is made.

An event is noted after its call has returned, except a removal. So a record claims no sync too early. A write that was
not recorded would show too: `DiskRecord.check_complete` compares the record with the files.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import pytest

SQLITE_OK = 0
# Not part of the record: locks, the index of the write-ahead log and sockets mean nothing after a power failure.
VOLATILE_SUFFIXES = ("-shm", ".lock", ".lock.waiting", ".sockets")
HIDDEN = (
    "this Python contains SQLite and hides its functions, so its writes cannot be recorded; run the tests with a Python"
    " that uses the SQLite library of the system, or leave these tests out: SKIP=power-loss"
)


@dataclass(frozen=True, slots=True)
class Created:
    """A directory entry for a new file, for a file that has another entry too, or for a new folder (`file` is 0)."""

    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Renamed:
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Removed:
    path: str


@dataclass(frozen=True, slots=True)
class Written:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class FileSynced:
    file: int


@dataclass(frozen=True, slots=True)
class FolderSynced:
    path: str


@dataclass(frozen=True, slots=True)
class Noted:
    """What the test noted at this moment, such as an acknowledgement."""

    note: Any


Event: TypeAlias = Created | Renamed | Removed | Written | Truncated | FileSynced | FolderSynced | Noted


class DiskRecord:
    """The events of one folder, in order, and the files that it had at the start, which count as synced.

    Paths are relative to the folder. A file keeps its number when it is renamed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.events: list[Event] = []
        self.files_at_start: dict[str, tuple[int, bytes]] = {}
        self.folders_at_start: list[str] = []
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._contents: dict[int, bytearray] = {}  # by number, with all writes
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if path.is_dir():
                self.folders_at_start.append(name)
            elif not name.endswith(VOLATILE_SUFFIXES):
                number = len(self._numbers) + 1
                self.files_at_start[name] = (number, path.read_bytes())
                self._numbers[name] = number
                self._contents[number] = bytearray(path.read_bytes())

    def name_of(self, path: str | os.PathLike[str]) -> str | None:
        """Return the path in this record; `None` for one that is outside of it or volatile."""
        full = os.path.abspath(os.fspath(path))  # noqa: PTH100 - links stay as they are
        inside = full == str(self.folder) or full.startswith(f"{self.folder}{os.sep}")
        if not inside or any(part.endswith(VOLATILE_SUFFIXES) for part in Path(full).parts):
            return None
        return os.path.relpath(full, self.folder)

    def name_of_open_file(self, handle: int) -> str | None:
        """Return the path in this record of an open file or folder."""
        opened = os.fstat(handle)
        for path in (self.folder, *self.folder.rglob("*")):
            if self.name_of(path) is not None and os.path.samestat(path.lstat(), opened):
                return self.name_of(path)
        return None

    def number_of(self, name: str) -> int:
        return self._numbers[name]

    def note(self, note: Any) -> None:
        with self._lock:
            self.events.append(Noted(note))

    def created(self, name: str, *, folder: bool = False) -> None:
        with self._lock:
            number = 0
            if not folder:
                number = len(self._contents) + 1
                self._numbers[name] = number
                self._contents[number] = bytearray()
            self.events.append(Created(name, number))

    def linked(self, name: str, target: str) -> None:
        with self._lock:
            self._numbers[target] = self._numbers[name]
            self.events.append(Created(target, self._numbers[name]))

    def renamed(self, name: str, target: str) -> None:
        with self._lock:
            self._numbers[target] = self._numbers.pop(name)
            self.events.append(Renamed(name, target))

    def removed(self, name: str) -> None:
        with self._lock:
            self._numbers.pop(name, None)
            self.events.append(Removed(name))

    def written(self, number: int, offset: int, data: bytes) -> None:
        with self._lock:
            write_into(self._contents[number], offset, data)
            self.events.append(Written(number, offset, data))

    def truncated(self, number: int, size: int) -> None:
        with self._lock:
            resize(self._contents[number], size)
            self.events.append(Truncated(number, size))

    def synced(self, number: int) -> None:
        with self._lock:
            self.events.append(FileSynced(number))

    def folder_synced(self, name: str) -> None:
        with self._lock:
            self.events.append(FolderSynced(name))

    def written_by_python(self, name: str, content: bytes) -> None:
        """Note what buffered files of Python have written by the time of a sync, as one write."""
        number = self._numbers[name]
        if self._contents[number] != content:
            self.truncated(number, 0)
            self.written(number, 0, content)

    def check_complete(self) -> None:
        """Check that the record has led to the files that are there now: nothing was written past the recorder."""
        found: dict[str, bytes] = {}
        for path in self.folder.rglob("*"):
            name = self.name_of(path)
            if name is not None and path.is_file():
                found[name] = path.read_bytes()
        expected = {name: bytes(self._contents[number]) for name, number in self._numbers.items()}
        assert found.keys() == expected.keys(), "files were created or removed past the recorder"
        for name, content in found.items():
            assert content == expected[name], f"{name} was changed past the recorder"


def write_into(content: bytearray, offset: int, data: bytes) -> None:
    resize(content, max(len(content), offset))
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


@contextmanager
def recorded(folder: Path) -> Iterator[DiskRecord]:
    """Record what this process does to the files of a folder. One record is made at a time."""
    if "power-loss" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=power-loss leaves the tests with recorded writes out")
    record = DiskRecord(folder)
    with ExitStack() as stack:
        stack.enter_context(_recorded_python(record))
        stack.enter_context(_RECORDER.installed(record))
        yield record


# --- files of Python


@contextmanager
def _recorded_python(record: DiskRecord) -> Iterator[None]:
    wrappers: dict[str, Callable[..., Any]] = {
        "open": _wrap_open(record, os.open),
        "mkdir": _wrap_mkdir(record, os.mkdir),
        "link": _wrap_two_paths(record.name_of, record.linked, os.link),
        "replace": _wrap_two_paths(record.name_of, record.renamed, os.replace),
        "rename": _wrap_two_paths(record.name_of, record.renamed, os.rename),
        "unlink": _wrap_unlink(record, os.unlink),
        "remove": _wrap_unlink(record, os.remove),
        "fsync": _wrap_fsync(record, os.fsync),
        "fdatasync": _wrap_fsync(record, os.fdatasync),
    }
    with ExitStack() as stack:
        for name, wrapper in wrappers.items():
            stack.enter_context(patch.object(os, name, wrapper))
        yield


def _wrap_open(record: DiskRecord, real: Callable[..., int]) -> Callable[..., int]:
    def opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
        name = record.name_of(path) if flags & os.O_CREAT else None
        is_new = name is not None and not os.path.lexists(path)
        handle = real(path, flags, *args, **options)
        if is_new and name is not None:
            record.created(name)
        return handle

    return opened


def _wrap_mkdir(record: DiskRecord, real: Callable[..., None]) -> Callable[..., None]:
    def made(path: Any, *args: Any, **options: Any) -> None:
        real(path, *args, **options)
        name = record.name_of(path)
        if name is not None:
            record.created(name, folder=True)

    return made


def _wrap_two_paths(
    name_of: Callable[[Any], str | None], note: Callable[[str, str], None], real: Callable[..., None]
) -> Callable[..., None]:
    def called(path: Any, target: Any, *args: Any, **options: Any) -> None:
        real(path, target, *args, **options)
        names = name_of(path), name_of(target)
        if names[0] is not None and names[1] is not None:
            note(names[0], names[1])

    return called


def _wrap_unlink(record: DiskRecord, real: Callable[..., None]) -> Callable[..., None]:
    def removed(path: Any, *args: Any, **options: Any) -> None:
        real(path, *args, **options)
        name = record.name_of(path)
        if name is not None:
            record.removed(name)

    return removed


def _wrap_fsync(record: DiskRecord, real: Callable[[Any], None]) -> Callable[[Any], None]:
    def synced(handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        name, status = record.name_of_open_file(number), os.fstat(number)
        if name is not None and stat.S_ISREG(status.st_mode):
            # Read by this handle: opening and closing another one would drop the locks that SQLite has on the file.
            record.written_by_python(name, os.pread(number, status.st_size, 0))
        real(handle)
        if name is not None and stat.S_ISDIR(status.st_mode):
            record.folder_synced(name)
        elif name is not None:
            record.synced(record.number_of(name))

    return synced


# --- files of SQLite


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("app_data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
        *((f"method_{number}", ctypes.c_void_p) for number in range(11)),  # xAccess to xCurrentTimeInt64
        ("set_system_call", ctypes.c_void_p),
        ("get_system_call", ctypes.c_void_p),
        ("next_system_call", ctypes.c_void_p),
    )


class _IoMethods(ctypes.Structure):
    """`sqlite3_io_methods`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        *((f"method_{number}", ctypes.c_void_p) for number in range(13)),  # xFileSize to xUnfetch
    )


class _File(ctypes.Structure):
    """`sqlite3_file`, the part that all implementations share."""

    _fields_ = (("methods", ctypes.POINTER(_IoMethods)),)


_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_OpenDirectory = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
_SetSystemCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_GetSystemCall = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_OPEN_DIRECTORY = b"openDirectory"


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _Recorder:
    """The VFS that records. It is made once per process, because open connections keep pointers into it.

    A file is opened by the VFS of the operating system. Then its table of methods is replaced by a copy in which
    writing, truncating and syncing are wrapped. The VFS syncs a folder by itself, within the sync of a new journal or
    the removal of one. It opens the folder by a system call that can be replaced, which shows when it does so.
    """

    def __init__(self) -> None:
        self._record: DiskRecord | None = None
        self._library: ctypes.CDLL | None = None
        self._files: dict[int, int] = {}  # address of a `sqlite3_file` → number of its file
        self._tables: dict[int, _IoMethods] = {}  # by the address of the table that was replaced
        self._kept: list[Any] = []  # functions that C code has pointers to
        self._thread = threading.local()

    @contextmanager
    def installed(self, record: DiskRecord) -> Iterator[None]:
        if self._library is None:
            self._prepare()
        assert self._library is not None
        assert self._record is None, "another record is being made"
        self._record = record
        self._set_system_call(self._system, _OPEN_DIRECTORY, _address(self._open_directory))
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        try:
            yield
        finally:
            self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
            self._set_system_call(self._system, _OPEN_DIRECTORY, None)
            self._record = None

    def _prepare(self) -> None:
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        if not hasattr(library, "sqlite3_vfs_find"):
            pytest.fail(HIDDEN)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._library = library
        self._system = library.sqlite3_vfs_find(None)
        real = self._system.contents
        self._real_open, self._real_delete = _Open(real.open), _Delete(real.delete)
        self._set_system_call = _SetSystemCall(real.set_system_call)
        self._real_open_directory = _OpenDirectory(_GetSystemCall(real.get_system_call)(self._system, _OPEN_DIRECTORY))
        self._open_directory = _OpenDirectory(self._on_open_directory)
        self._vfs = _Vfs.from_buffer_copy(real)
        self._vfs.name, self._vfs.next = b"recorder", None
        self._kept += [_Open(self._on_open), _Delete(self._on_delete)]
        self._vfs.open, self._vfs.delete = map(_address, self._kept)

    def _name(self, path: bytes | None) -> str | None:
        return None if path is None or self._record is None else self._record.name_of(os.fsdecode(path))

    def _on_open(self, _: int, path: int | None, file: int, flags: int, flags_out: Any) -> int:
        # The name is passed on as the same pointer: SQLite stores parameters behind its end.
        name = self._name(ctypes.string_at(path) if path else None)
        record = self._record
        is_new = record is not None and name is not None and not (record.folder / name).exists()
        code: int = self._real_open(ctypes.addressof(self._system.contents), path, file, flags, flags_out)
        if code == SQLITE_OK and record is not None and name is not None:
            if is_new:
                record.created(name)
            self._files[file] = record.number_of(name)
            opened = _File.from_address(file)
            opened.methods = ctypes.pointer(self._table(opened.methods.contents))
        return code

    def _on_delete(self, _: int, path: bytes, sync_folder: int) -> int:
        name, record = self._name(path), self._record
        if record is not None and name is not None and (record.folder / name).exists():
            record.removed(name)
        return self._syncing(lambda: self._real_delete(ctypes.addressof(self._system.contents), path, sync_folder))

    def _on_open_directory(self, path: bytes, handle: Any) -> int:
        code: int = self._real_open_directory(path, handle)
        if code == SQLITE_OK:
            self._thread.folders.append(os.path.dirname(os.fsdecode(path)))  # noqa: PTH120
        return code

    def _syncing(self, call: Callable[[], int], number: int = 0) -> int:
        """Make a call that may sync a file and its folder, and note what it has synced."""
        self._thread.folders = []
        code = call()
        if code == SQLITE_OK and self._record is not None:
            if number:
                self._record.synced(number)
            for folder in self._thread.folders:
                name = self._record.name_of(folder)
                if name is not None:
                    self._record.folder_synced(name)
        return code

    def _table(self, real: _IoMethods) -> _IoMethods:
        address = ctypes.addressof(real)
        if address not in self._tables:
            table = _IoMethods.from_buffer_copy(real)
            write, truncate, sync = _Write(real.write), _Truncate(real.truncate), _Sync(real.sync)

            def on_write(file: int, data: int, size: int, offset: int) -> int:
                code: int = write(file, data, size, offset)
                if code == SQLITE_OK and self._record is not None:
                    self._record.written(self._files[file], offset, ctypes.string_at(data, size))
                return code

            def on_truncate(file: int, size: int) -> int:
                code: int = truncate(file, size)
                if code == SQLITE_OK and self._record is not None:
                    self._record.truncated(self._files[file], size)
                return code

            def on_sync(file: int, flags: int) -> int:
                return self._syncing(lambda: sync(file, flags), self._files[file])

            wrapped = [_Write(on_write), _Truncate(on_truncate), _Sync(on_sync)]
            self._kept += wrapped
            table.write, table.truncate, table.sync = map(_address, wrapped)
            self._tables[address] = table
        return self._tables[address]


_RECORDER = _Recorder()
