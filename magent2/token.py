"""The token of a gateway, in a file of the data folder that only its owner can read. Commands read it from there."""

from __future__ import annotations

import os
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from magent2.errors import SettingsError
from magent2.private_files import create_file, make_folder, narrow, sync

FILE_NAME = "token"
TOKEN_BYTES = 24
TOKEN_MIN_CHARS, TOKEN_MAX_CHARS = 16, 512
TOKEN = re.compile(rf"[A-Za-z0-9._~-]{{{TOKEN_MIN_CHARS},{TOKEN_MAX_CHARS}}}")


def check_token(token: str) -> str:
    """Check that a token fits into a header and a URL and is long enough not to be guessed."""
    if not is_token(token):
        raise SettingsError(
            f"a token has {TOKEN_MIN_CHARS} to {TOKEN_MAX_CHARS} letters, digits, '-', '_', '.' or '~';"
            " 'magent2 token rotate' makes one"
        )
    return token


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token."""
    return TOKEN.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The file that holds the token. Running gateways read a new token at the next request."""

    path: Path

    @classmethod
    def within(cls, data_dir: Path) -> TokenFile:
        return cls(data_dir / FILE_NAME)

    @property
    def label(self) -> str:
        """A name for the token that tells an operator where its file is."""
        return f"token file {self.path} on {socket.gethostname()}"

    def read(self) -> str | None:
        """The token, or `None` if there is no file yet."""
        try:
            text = self.path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"the token file {self.path} cannot be read: {error}") from error
        return check_token(text)

    def obtain(self) -> str:
        """The token; creates one if there is none. A file that other users can read is narrowed."""
        narrow(self.path)
        return self.read() or self._create()

    def rotate(self) -> str:
        """Replace the token. The old one is invalid from now on."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        draft = self._write_draft(token)
        draft.replace(self.path)
        sync(self.path.parent)  # after a power failure the old token must not be valid again
        return token

    def _create(self) -> str:
        """Create the token. If several processes start together, one creates it and all use it: `link` is atomic."""
        draft = self._write_draft(secrets.token_urlsafe(TOKEN_BYTES))
        try:
            with suppress(FileExistsError):  # another process created it first: its token is read below
                os.link(draft, self.path)
            sync(self.path.parent)
        except OSError as error:
            raise self._cannot_create(error) from error
        finally:
            draft.unlink(missing_ok=True)
        return self.read() or self._create()

    def _cannot_create(self, error: OSError) -> SettingsError:
        fix = "set MAGENT2_DATA_DIR to a folder that you can write to"
        return SettingsError(f"the token file {self.path} cannot be created ({error.strerror}); {fix}")

    def _write_draft(self, token: str) -> Path:
        draft = self.path.with_name(f".{FILE_NAME}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            make_folder(self.path.parent)
            with os.fdopen(create_file(draft, shared=False), "w", encoding="ascii") as file:
                file.write(token + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._cannot_create(error) from error
        return draft
