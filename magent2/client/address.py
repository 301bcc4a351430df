"""Where a gateway is, and what lets a client in."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from magent2.errors import SettingsError
from magent2.settings import Settings, is_loopback
from magent2.token import TokenFile, check_token


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A gateway's URL and token. The token does not print."""

    url: str
    token: str | None = field(repr=False)

    @classmethod
    def find(cls, url: str | None, token: str | None, settings: Settings | None = None) -> GatewayAddress:
        """What was given, else what the environment says, else a gateway on this machine.

        A URL may carry its token as `serve` prints it, `#token=…`. The token file of this machine is for gateways on
        this machine: it is never sent elsewhere.
        """
        if url is not None and token is not None:
            plain, _ = _parse(url)
            return cls(plain, check_token(token))
        chosen = settings or Settings.read()
        plain, carried = _parse(url or chosen.gateway_url)
        known = token or carried or chosen.token
        if known is None and is_loopback(urlsplit(plain).hostname or ""):
            known = TokenFile.within(chosen.data_dir).read()
        return cls(plain, None if known is None else check_token(known))

    @property
    def is_here(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https://")


def _parse(url: str) -> tuple[str, str | None]:
    parts = _split(url)
    if parts is None or parts.username is not None or parts.query:
        raise SettingsError(f"{_shown(url)} is not the URL of a gateway; use one like http://127.0.0.1:8700")
    carried = parse_qs(parts.fragment).get("token", [None])[0]
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), carried


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url.strip())
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:  # brackets that do not close, or a port that is no number
        return None


def _shown(url: str) -> str:
    return "that" if "@" in url or "#" in url else repr(url[:80])
