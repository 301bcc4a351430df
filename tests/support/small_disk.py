"""A file system of a few megabytes, which a test can fill."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system on a folder until the end of the block. The test is skipped if that is not permitted."""
    owner, group = folder.owner(), folder.group()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted only with privileges")
    try:
        shutil.chown(folder, owner, group)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a failed test may have files open


def fill_disk(ballast: Path) -> None:
    """Write a file until the file system has no room."""
    with ballast.open("wb", buffering=0) as file:
        while free := shutil.disk_usage(ballast.parent).free:
            file.write(b"x" * free)
