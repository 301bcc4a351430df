"""Rules of a webhook's configuration: its URL, the addresses it may lead to, and its secret.

They are the first half of the SSRF guard. The connector, which resolves the name and connects, has the other half.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from magent2.errors import SettingsError

# --- the URL, and the addresses that it may lead to

URL_MAX_CHARS = 2000

# IPv6 networks whose addresses contain an IPv4 address in the last 32 bits. That address decides: a name server of a
# network without IPv4 returns such addresses (NAT64) for public receivers.
_EMBEDS_IPV4 = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))

# The blocks of the IANA special-purpose registries of IPv4 and IPv6 (as of October 2025), and multicast. No receiver of
# webhooks has an address in one of them, so those that the registries call globally reachable are refused too: they are
# answered by a service of the local network. `ipaddress` is not asked: its tables differ between releases of Python.
_IPV4_SPECIAL = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private use
            "100.64.0.0/10",  # shared address space of providers
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",  # private use
            "192.0.0.0/24",  # IETF protocol assignments, with metadata services of clouds
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private use
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_IPV6_GLOBAL = IPv6Network("2000::/3")  # everything else is loopback, private, reserved, multicast or translated
_IPV6_SPECIAL = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarks, AMT, AS112, ORCHID, DRIP
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which contains an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The parts of a webhook's URL. `private`: addresses that are not public are allowed too."""

    scheme: str
    host: str
    port: int
    path: str
    private: bool

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == {"http": 80, "https": 443}[self.scheme] else f"{name}:{self.port}"

    def url(self, address: str) -> str:
        """Return the URL with the address in place of the host name."""
        name = f"[{address}]" if ":" in address else address
        return f"{self.scheme}://{name}:{self.port}{self.path}"


def parse_target(url: str, *, private: bool = False) -> WebhookTarget:
    """Parse and check a URL. Raises `SettingsError`."""
    if len(url) > URL_MAX_CHARS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise SettingsError(
            f"a webhook URL must have at most {URL_MAX_CHARS} printable ASCII characters, without spaces or backslashes"
        )
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise SettingsError(f"{url[:80]!r} is not a valid URL: {error}") from error
    _check_parts(parts, host, private)
    if parse_address(host) is not None:
        check_address(host, private)
    default_port = 443 if parts.scheme == "https" else 80
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, host, default_port if port is None else port, path, private)


def _check_parts(parts: SplitResult, host: str, private: bool) -> None:
    if parts.scheme not in (("https", "http") if private else ("https",)):
        raise SettingsError("a webhook URL must begin with https://; http:// requires allow_private")
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        raise SettingsError("a webhook URL must have a host, and no user, password or fragment")
    if parts.port == 0:
        raise SettingsError("a webhook URL cannot have the port 0")
    # Resolvers also accept numbers such as 2130706433, 0x7f.1 or 0177.0.0.1 as addresses of IPv4. They would bypass
    # the check of the address, so only the standard form is accepted.
    numeric = host.replace(".", "").replace("x", "").isalnum() and host.rsplit(".", maxsplit=1)[-1][:1].isdigit()
    if numeric and parse_address(host) is None:
        raise SettingsError(f"{host[:80]!r} is not an address in standard form; write it as four decimal numbers")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is on the public internet. An IPv4 address inside an IPv6 address decides for it."""
    if isinstance(address, IPv6Address) and any(address in network for network in _EMBEDS_IPV4):
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _IPV4_SPECIAL)
    return address in _IPV6_GLOBAL and not any(address in network for network in _IPV6_SPECIAL)


def check_address(text: str, private: bool) -> None:
    """Raise `SettingsError` for an address that a webhook may not connect to."""
    address = parse_address(text)
    if address is None or (not private and not is_public(address)):
        raise SettingsError("the address is not public; webhooks to private addresses require allow_private")
    if address.is_unspecified or address.is_multicast:
        raise SettingsError("the address is unspecified or multicast; use the address of one host")


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address, or `None` for the name of a host."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


# --- the configuration

SECRET_MIN_CHARS = 16
# Only variables with this prefix can be named. Otherwise an administrator of the API could have requests signed with
# any variable of the worker, and the receiver could try out guesses of a short one.
SECRET_ENV_PREFIX = "MAGENT2_SECRET_"  # noqa: S105  # pragma: allowlist secret
WEBHOOK_SETTINGS = ("url", "secret", "secret_env", "allow_private", "takes_key")
_SECRET_ENV = re.compile(rf"{SECRET_ENV_PREFIX}[A-Z0-9_]{{1,100}}")


def check_webhook(config: Mapping[str, object]) -> WebhookTarget:
    """Check the configuration of a webhook, and return its target. Raises `SettingsError`.

    `secret_env` is checked for its form only: the variable has to be set where the relay runs, not here.
    """
    unknown = set(config) - set(WEBHOOK_SETTINGS)
    if unknown:
        raise SettingsError(
            f"unknown webhook settings: {', '.join(sorted(unknown))}; known: {', '.join(WEBHOOK_SETTINGS)}"
        )
    secret, variable = config.get("secret"), config.get("secret_env")
    if (secret is None) == (variable is None):
        raise SettingsError("a webhook needs one of secret and secret_env; give one of them")
    if variable is not None and not (isinstance(variable, str) and _SECRET_ENV.fullmatch(variable)):
        raise SettingsError(
            f"secret_env names an environment variable that begins with {SECRET_ENV_PREFIX}, such as"
            f" {SECRET_ENV_PREFIX}HOOK"
        )
    if secret is not None and (not isinstance(secret, str) or len(secret) < SECRET_MIN_CHARS):
        raise SettingsError(
            f"the secret of a webhook has at least {SECRET_MIN_CHARS} characters; make one with 'openssl rand -hex 32'"
        )
    url = config.get("url")
    if not isinstance(url, str):
        raise SettingsError("a webhook needs a url")
    return parse_target(url, private=config.get("allow_private") is True)
