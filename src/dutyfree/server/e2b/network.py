"""What a client asks of the network, as a network of a lease. Pure. What cannot be kept is refused, never left out."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Egress, Network
from dutyfree.server.e2b.errors import not_implemented

ALL_TRAFFIC: Final = "0.0.0.0/0"
_UNSUPPORTED: Final = {
    "rules": "headers cannot be injected into outgoing requests",
    "egressProxy": "outgoing connections cannot go through a proxy of the client's",
    "maskRequestHost": "the host name of requests to ports cannot be changed",
    "httpsPorts": "connections to ports that speak TLS themselves are not supported",
    "dnsServers": "names are looked up by the server; there are no DNS servers to choose",
}


def read_network(
    internet: bool | None, network: Mapping[str, Any] | None, *, default_internet: bool
) -> Network | Egress:
    """The network of a lease, from `allow_internet_access` and `network` of a request.

    As in E2B, everything public is allowed unless it is denied, and `allowOut` goes before `denyOut`. Names and
    addresses are reached on ports 80 and 443. Raises InvalidRequest, and HttpError 501 for what this server lacks.
    """
    asked = network or {}
    for name, why in _UNSUPPORTED.items():
        if asked.get(name):
            raise not_implemented(f"network.{name}: {why}")
    allow, deny = _hosts(asked, "allowOut"), _hosts(asked, "denyOut")
    if not default_internet:
        if internet or allow:
            raise InvalidRequest("this server gives sandboxes no internet access", hint="allow_internet_access=False")
        return Network.NONE
    names = [each for each in allow if each != ALL_TRAFFIC]
    is_open = ALL_TRAFFIC in allow or not (internet is False or ALL_TRAFFIC in deny)
    if not is_open:
        return Egress(allow=names) if names else Network.NONE
    return Egress(allow=("*", *names), deny=[each for each in deny if each not in (*allow, ALL_TRAFFIC)])


def _hosts(network: Mapping[str, Any], name: str) -> list[str]:
    """Host names and single addresses; `ALL_TRAFFIC` stands for itself."""
    entries = network.get(name)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
        raise InvalidRequest(f"network.{name} must be a list of texts")
    return [_host(each, name) for each in entries]


def _host(entry: str, name: str) -> str:
    if entry in (ALL_TRAFFIC, "::/0"):
        return ALL_TRAFFIC
    if "/" not in entry:
        return entry
    try:
        block = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        raise InvalidRequest(f"network.{name}: {entry!r:.80} is neither a host nor a block of addresses") from None
    if block.num_addresses > 1:
        raise not_implemented(f"network.{name}: blocks of addresses such as {entry} are not supported; name hosts")
    address = str(block.network_address)
    return f"[{address}]" if block.version == 6 else address
