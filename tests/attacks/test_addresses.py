"""A webhook to an address that is not public is refused, in every form of the address."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest

from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.webhook import WebhookConnector
from magent2.errors import NotTaken, SettingsError
from magent2.models.webhook_config import is_public, parse_target

SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
MESSAGE = OutgoingMessage("m-1", "hook", "ann", "one", "Ada", "hello", "2026-01-01T00:00:00+00:00")

# The registries of IANA: iana-ipv4-special-registry and iana-ipv6-special-registry, and both multicast networks.
IPV4_REGISTRY = [
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32",
    "192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32",
    "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
    "240.0.0.0/4", "255.255.255.255/32",
]  # fmt: skip
IPV6_REGISTRY = [
    "::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32", "2001:1::1/128",
    "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28",
    "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7",
    "fe80::/10", "fec0::/10", "ff00::/8",
]  # fmt: skip
METADATA = ["169.254.169.254", "192.0.0.192", "100.100.100.200", "fd00:ec2::254", "fe80::a9fe:a9fe"]
NEIGHBOURS = [  # the addresses just outside of a block, and ordinary receivers
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.3.0",
    "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "223.255.255.255",
    "2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2001:db9::1", "2003::1", "2606:4700:4700::1111",
    "2620:4f:7fff::1", "2a00:1450:4001::1", "3ffe:ffff::1",
]  # fmt: skip


def ends_of(network: str) -> list[IPv4Address | IPv6Address]:
    block = ip_network(network)
    return [block[0], block[block.num_addresses // 2], block[-1]]


def forms_of(inner: IPv4Address) -> list[str]:
    """The IPv6 addresses that contain an IPv4 address. Of a public one, the first two are public."""
    number = int(inner)
    high, low = number >> 16, number & 0xFFFF
    return [
        f"::ffff:{inner}",  # mapped
        f"64:ff9b::{inner}",  # NAT64
        f"::{inner}",  # compatible
        f"::ffff:0:{inner}",  # translated
        f"64:ff9b:1::{inner}",  # NAT64 of a local network
        f"64:ff9b:1:{high:x}:{low >> 8:x}:{(low & 0xFF) << 8:x}:808:808",  # the same, with a prefix of 48 bits
        f"2002:{high:x}:{low:x}::1",  # 6to4
        f"2001:0:808:808:0:0:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",  # Teredo
    ]


@pytest.mark.parametrize("network", IPV4_REGISTRY)
def test_no_address_of_a_special_block_of_ipv4_is_public_in_any_form(network: str) -> None:
    for address in ends_of(network):
        assert isinstance(address, IPv4Address)
        found = [text for text in (str(address), *forms_of(address)) if is_public(ip_address(text))]
        assert found == []


@pytest.mark.parametrize("network", IPV6_REGISTRY)
def test_no_address_of_a_special_block_of_ipv6_is_public(network: str) -> None:
    assert [str(address) for address in ends_of(network) if is_public(address)] == []


@pytest.mark.parametrize("address", METADATA)
async def test_the_metadata_services_of_clouds_are_refused_by_address_and_by_name(address: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34", address]

    with pytest.raises(SettingsError, match="not public"):
        parse_target(f"https://[{address}]/" if ":" in address else f"https://{address}/")
    connector = WebhookConnector({"url": "https://hook.example/", "secret": SECRET}, resolve=resolve)
    try:
        with pytest.raises(NotTaken, match="not public"):
            await connector.send(MESSAGE, {})
    finally:
        await connector.aclose()


@pytest.mark.parametrize("text", NEIGHBOURS)
def test_addresses_beside_the_special_blocks_are_public(text: str) -> None:
    assert is_public(ip_address(text))


def test_a_public_receiver_is_reached_through_nat64_and_as_a_mapped_address() -> None:
    mapped, nat64, *others = forms_of(IPv4Address("8.8.8.8"))
    assert is_public(ip_address(mapped))
    assert is_public(ip_address(nat64))
    assert [text for text in others if is_public(ip_address(text))] == []
