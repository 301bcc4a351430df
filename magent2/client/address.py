"""The address of a gateway: its URL and its token."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit, urlunsplit

from magent2.errors import SettingsError
from magent2.settings import Settings, is_loopback
from magent2.token import TokenFile, check_token


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A gateway's URL and token. The token is not part of the repr."""

    url: str
    token: str | None = field(repr=False)

    @classmethod
    def find(cls, url: str | None, token: str | None, settings: Settings | None = None) -> GatewayAddress:
        """Use the arguments, else the environment, else the gateway on this machine.

        A URL may contain its token as `serve` prints it, `#token=…`. The token file of this machine is used only for
        gateways on this machine: its token is never sent to another host.
        """
        if url is not None and token is not None:
            base_url, _ = _parse(url)
            return cls(base_url, check_token(token))
        chosen = settings or Settings.read()
        base_url, url_token = _parse(url or chosen.gateway_url)
        found = token or url_token or chosen.token
        if found is None and is_loopback(urlsplit(base_url).hostname or ""):
            found = TokenFile.within(chosen.data_dir).read()
        return cls(base_url, None if found is None else check_token(found))

    @property
    def is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https://")


def _parse(url: str) -> tuple[str, str | None]:
    """Split a URL into the base URL and the token in its fragment."""
    try:
        parts = urlsplit(url.strip())
        has_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets, or a port that is not a number
        parts, has_host = urlsplit(""), False
    if not has_host or parts.username is not None or parts.query:
        # Error messages end up in logs, so this one does not repeat a URL that may contain a secret.
        shown = "that" if "@" in url or "#" in url else repr(url[:80])
        raise SettingsError(f"{shown} is not the URL of a gateway; use one like http://127.0.0.1:8700")
    token = parse_qs(parts.fragment).get("token", [None])[0]
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), token
