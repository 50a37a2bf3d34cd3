"""Which addresses may be connected to, whatever name has led to them."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from dutyfree.model.hostname import Address


class Reach(Enum):
    """Who may connect to an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    """Names in `private=` alone."""
    REFUSED = "refused"
    """No name; link-local and metadata addresses can be written out in `private=`."""
    NEVER = "never"


_IPV4: Final = tuple(
    (IPv4Network(network), reach, what)
    for network, reach, what in (
        ("100.100.100.200/32", Reach.REFUSED, "metadata"),
        ("168.63.129.16/32", Reach.REFUSED, "metadata"),
        ("192.0.0.192/32", Reach.REFUSED, "metadata"),
        ("169.254.169.254/32", Reach.REFUSED, "metadata"),
        ("169.254.0.0/16", Reach.REFUSED, "link-local"),
        ("10.0.0.0/8", Reach.PRIVATE, "private"),
        ("172.16.0.0/12", Reach.PRIVATE, "private"),
        ("192.168.0.0/16", Reach.PRIVATE, "private"),
        ("100.64.0.0/10", Reach.PRIVATE, "carrier-grade NAT"),
        ("127.0.0.0/8", Reach.PRIVATE, "loopback"),
        ("0.0.0.0/8", Reach.NEVER, "unspecified"),
        ("192.0.0.0/24", Reach.NEVER, "reserved"),
        ("192.0.2.0/24", Reach.NEVER, "reserved"),
        ("192.88.99.0/24", Reach.NEVER, "reserved"),
        ("198.18.0.0/15", Reach.NEVER, "reserved"),
        ("198.51.100.0/24", Reach.NEVER, "reserved"),
        ("203.0.113.0/24", Reach.NEVER, "reserved"),
        ("224.0.0.0/4", Reach.NEVER, "multicast"),
        ("240.0.0.0/4", Reach.NEVER, "reserved"),
    )
)
_IPV6: Final = tuple(
    (IPv6Network(network), reach, what)
    for network, reach, what in (
        ("fd00:ec2::254/128", Reach.REFUSED, "metadata"),
        ("fd20:ce::254/128", Reach.REFUSED, "metadata"),
        ("::1/128", Reach.PRIVATE, "loopback"),
        ("::/128", Reach.NEVER, "unspecified"),
        ("fe80::/10", Reach.REFUSED, "link-local"),
        ("fec0::/10", Reach.REFUSED, "site-local"),
        ("fc00::/7", Reach.PRIVATE, "private"),
        ("ff00::/8", Reach.NEVER, "multicast"),
        ("2001::/23", Reach.NEVER, "reserved"),  # with Teredo, which embeds IPv4 addresses
        ("2001:db8::/32", Reach.NEVER, "reserved"),
        ("2002::/16", Reach.NEVER, "6to4"),  # embeds IPv4 addresses
        ("3fff::/20", Reach.NEVER, "reserved"),
    )
)
_EMBEDDING: Final = tuple(IPv6Network(each) for each in ("::ffff:0:0/96", "::/96", "64:ff9b::/96"))
"""IPv4-mapped, IPv4-compatible and NAT64: the last four bytes are an IPv4 address."""
_GLOBAL: Final = IPv6Network("2000::/3")


@lru_cache(1024)
def classify(address: Address) -> tuple[Reach, str]:
    """Who may connect to the address, and what kind of address it is, in one word."""
    if isinstance(address, IPv4Address):
        return next(((reach, what) for network, reach, what in _IPV4 if address in network), (Reach.PUBLIC, "public"))
    for network, reach, what in _IPV6:
        if address in network:
            return reach, what
    for network in _EMBEDDING:
        if address in network:
            return classify(IPv4Address(int(address) & 0xFFFFFFFF))
    return (Reach.PUBLIC, "public") if address in _GLOBAL else (Reach.NEVER, "reserved")


def refusal(address: Address, *, private: bool, literal: bool) -> str:
    """Why the address must not be connected to; empty if it may be.

    `private`: a rule of `private=` allows the host. `literal`: that rule is this address, written out.
    """
    reach, what = classify(address)
    allowed = (
        reach is Reach.PUBLIC
        or (private and reach is Reach.PRIVATE)
        or (private and literal and reach is Reach.REFUSED)
    )
    return "" if allowed else f"{what} address {address}"


def unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped IPv6 address stands for; other addresses as they are."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
