"""What `send_file` can be made to send: files beneath the agent's own folder, and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.connectors.media import media_type_of
from magent2.errors import InvalidInput
from magent2.models.media import MEDIA, served_type
from magent2.tools.messaging import user_messages
from magent2.tools.messaging.user_messages import SendFile, folder_of, read_beneath
from magent2.tools.sending import definition_of
from tests.contracts.sending_tool import World
from tests.support.directory_fixture import message_files, populate_directory
from tests.support.sending import commit, scope_of

SECRET = "what is nobody's business"  # pragma: allowlist secret


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of Ada's with every kind of trap in it, and secrets around it."""
    root = tmp_path / "files"
    folder = root / "Ada"
    (folder / "deep").mkdir(parents=True)
    (folder / "note.txt").write_text("hello")
    (folder / "deep" / "note.txt").write_text("hello from below")
    (root / "secret.txt").write_text(SECRET)
    (root / "Bob").mkdir()
    (root / "Bob" / "secret.txt").write_text(SECRET)
    (folder / "link.txt").symlink_to(root / "secret.txt")
    (folder / "near.txt").symlink_to("note.txt")
    (folder / "up").symlink_to(root)
    (folder / "deep" / "root").symlink_to("/")
    (folder / "passwd.txt").symlink_to("/etc/passwd")
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "proc.txt").symlink_to("/proc/self/environ")
    os.link(root / "secret.txt", folder / "hard.txt")
    os.mkfifo(folder / "pipe.txt")
    (folder / "empty.txt").touch()
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "art.svg").write_text("<svg onload='alert(1)'/>")
    (folder / "fake.png").write_text("<script>alert(1)</script>")
    (folder / "binary.txt").write_bytes(b"\x00\x01")
    (folder / "latin.txt").write_bytes(b"\xff\xfe")
    (folder / "none").write_text("no ending")
    return root


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def world_of(bus: MemoryBus, root: Path) -> World:
    return World(populate_directory(bus), definition_of(SendFile(root)), [], [], lambda: message_files(bus), [])


ESCAPES = [
    "/etc/passwd",
    "//etc/passwd",
    "../secret.txt",
    "../Bob/secret.txt",
    "deep/../../secret.txt",
    "deep/../../../../../../etc/passwd",
    "./../secret.txt",
    "deep/./note.txt",
    "..",
    ".",
    "",
    "deep",
    "deep/",
    "~/secret.txt",
    "..\\secret.txt",
    "link.txt",
    "near.txt",
    "up/secret.txt",
    "up/Bob/secret.txt",
    "deep/root/etc/passwd",
    "passwd.txt",
    "self.txt",
    "proc.txt",
    "hard.txt",
    "pipe.txt",
    "empty.txt",
    "page.html",
    "art.svg",
    "fake.png",
    "binary.txt",
    "latin.txt",
    "none",
    "note.txt\0.png",
    "note.txt\n",
    "note.txt/more.txt",
    "%2e%2e/secret.txt",
    "file:///etc/passwd",
    "a" * 300 + ".txt",
    "x/" * 600 + "note.txt",
]


@pytest.mark.parametrize("path", ESCAPES)
async def test_nothing_else_than_files_beneath_the_folder_can_be_sent(bus: MemoryBus, root: Path, path: str) -> None:
    world = world_of(bus, root)

    with pytest.raises(InvalidInput) as refusal:
        await world.call({"path": path, "now": True}, scope_of(world.facts))

    assert world.arrived() == []
    assert SECRET not in str(refusal.value)
    assert str(root) not in str(refusal.value)


def test_a_socket_is_no_file(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(root / "Ada" / "s.txt"))

        with pytest.raises(InvalidInput):
            read_beneath(root / "Ada", "s.txt")


def test_a_folder_that_is_a_link_is_no_folder(root: Path) -> None:
    (root / "Cat").symlink_to(root / "Bob")

    with pytest.raises(InvalidInput, match="you have no folder"):
        read_beneath(folder_of(root, "Cat"), "secret.txt")


@pytest.mark.parametrize("agent", ["..", ".", "../Bob", "a/b", "Bob/../Ada", "\\", "a b"])
def test_whatever_an_agent_is_called_its_folder_is_one_step_beneath(root: Path, agent: str) -> None:
    folder = folder_of(root, agent)

    assert folder.parent == root
    assert folder.name not in ("..", ".", "")


def test_a_file_over_the_cap_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_messages, "FILE_MAX_BYTES", 4)

    with pytest.raises(InvalidInput, match="larger than 4 bytes"):
        read_beneath(root / "Ada", "note.txt")


async def test_a_file_that_changes_after_the_hold_is_sent_as_it_was(bus: MemoryBus, root: Path) -> None:
    world = world_of(bus, root)
    scope = scope_of(world.facts)
    await world.call({"path": "note.txt"}, scope)

    (root / "Ada" / "note.txt").write_text("something else")
    commit(scope)

    assert world.arrived() == ["note.txt: hello"]


async def test_files_of_one_name_keep_their_own_content(bus: MemoryBus, root: Path) -> None:
    world = world_of(bus, root)
    world.good = [{"path": "note.txt"}, {"path": "deep/note.txt"}]
    scope = scope_of(world.facts)
    await world.call_all(scope)
    (root / "Ada" / "note.txt").unlink()

    commit(scope)

    assert world.arrived() == ["note.txt: hello", "note.txt: hello from below"]


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


@pytest.mark.parametrize(
    ("name", "data", "send_as", "found"),
    [
        ("a.TXT", b"hi", "file", "text/plain"),
        ("a.png", PNG, "photo", "image/png"),
        ("a.png", PNG, "file", "image/png"),
        ("a.png", PNG, "video", None),
        ("a.webp", b"RIFF0000WEBP", "photo", "image/webp"),
        ("a.mp4", b"0000ftypisom", "video", "video/mp4"),
        ("a.pdf", b"%PDF-1.7", "file", "application/pdf"),
        ("a.pdf", b"MZ", "file", None),
        ("a.exe", b"MZ", "file", None),
        ("a.txt.exe", b"hi", "file", None),
        ("txt", b"hi", "file", None),
    ],
)
def test_the_content_must_be_what_the_name_says(name: str, data: bytes, send_as: Any, found: str | None) -> None:
    if found is None:
        with pytest.raises(InvalidInput):
            media_type_of(name, data, send_as)
    else:
        assert media_type_of(name, data, send_as) == found


def test_nothing_is_served_as_what_a_browser_would_run() -> None:
    assert {"text/html", "image/svg+xml", "text/xml"}.isdisjoint(media.media_type for media in MEDIA.values())
    assert [served_type(kind) for kind in ("text/html", "image/png", None, 3)] == [
        "application/octet-stream",
        "image/png",
        "application/octet-stream",
        "application/octet-stream",
    ]
