"""The token of a gateway: a file in the data folder that only its owner can read, so that a person need not type it."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from magent2.errors import SettingsError

FILE_NAME = "token"
TOKEN_BYTES = 24
TOKEN_MIN_CHARS, TOKEN_MAX_CHARS = 16, 512


def check_token(token: str) -> str:
    """A token that fits into a header and an address, and that nobody guesses."""
    if not TOKEN_MIN_CHARS <= len(token) <= TOKEN_MAX_CHARS or not token.isascii() or not _is_plain(token):
        raise SettingsError(
            f"a token has {TOKEN_MIN_CHARS} to {TOKEN_MAX_CHARS} letters, digits, '-', '_', '.' or '~';"
            " 'magent2 token rotate' makes one"
        )
    return token


def _is_plain(token: str) -> bool:
    return all(sign.isalnum() or sign in "-_.~" for sign in token)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The file that holds the token. Gateways that run see a new one at the next request."""

    path: Path

    @classmethod
    def within(cls, data_dir: Path) -> TokenFile:
        return cls(data_dir / FILE_NAME)

    def read(self) -> str | None:
        """The token, or `None` where there is no file yet."""
        try:
            text = self.path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"the token file {self.path} cannot be read: {error}") from error
        return check_token(text)

    def obtain(self) -> str:
        """The token; a first one is made where there is none."""
        return self.read() or self._create()

    def rotate(self) -> str:
        """Replace the token: the old one is worth nothing from now on."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        draft = self._write_draft(token)
        draft.replace(self.path)
        return token

    def _create(self) -> str:
        """Of several processes that start together one makes the token, and all use it."""
        draft = self._write_draft(secrets.token_urlsafe(TOKEN_BYTES))
        try:
            os.link(draft, self.path)
        except FileExistsError:
            pass  # another process was quicker: its token is read below
        except OSError as error:
            raise SettingsError(f"the token file {self.path} cannot be made: {error}") from error
        finally:
            draft.unlink(missing_ok=True)
        return self.read() or self._create()

    def _write_draft(self, token: str) -> Path:
        draft = self.path.with_name(f".{FILE_NAME}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(token + "\n")
        except OSError as error:
            raise SettingsError(f"the token file {self.path} cannot be made: {error}") from error
        return draft
