"""The proxy that the host itself uses to reach the outside, as its environment names it. No I/O."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from urllib.parse import unquote, urlsplit

from dutyfree.model.hostname import HostName, format_authority

_LOCAL_SUFFIXES = ("localhost", "local", "internal", "intranet", "lan", "home", "corp", "home.arpa")


@dataclass(frozen=True, slots=True)
class HostProxy:
    """One HTTP proxy."""

    host: str
    port: int
    authorization: str = ""

    def connect_head(self, host: HostName, port: int) -> bytes:
        """The request for a tunnel."""
        authority = format_authority(host, port)
        login = f"proxy-authorization: {self.authorization}\r\n" if self.authorization else ""
        return f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n{login}\r\n".encode("latin-1")


def find(env: Mapping[str, str], host: HostName, port: int) -> HostProxy | None:
    """The proxy for connections to a host and port; None where the environment has none for it."""
    names = ("http_proxy", "HTTP_PROXY") if port == 80 else ("https_proxy", "HTTPS_PROXY")
    url = next((env[name] for name in (*names, "all_proxy", "ALL_PROXY") if env.get(name)), "")
    if not url or _is_exempt(env.get("no_proxy") or env.get("NO_PROXY") or "", host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        return None
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(pair.encode()).decode()
    return HostProxy(parts.hostname, parts.port or 80, login)


def looks_private(name: str) -> bool:
    """Whether a name is by its form one of a private network: a proxy would look it up there, unseen by us."""
    return "." not in name or any(name == suffix or name.endswith(f".{suffix}") for suffix in _LOCAL_SUFFIXES)


def _is_exempt(no_proxy: str, host: HostName) -> bool:
    return any(_exempts(entry.strip().lower(), host) for entry in no_proxy.split(",") if entry.strip())


def _exempts(entry: str, host: HostName) -> bool:
    if entry == "*":
        return True
    if isinstance(host, str):
        name = entry.removeprefix("*").removeprefix(".")
        return host == name or host.endswith(f".{name}")
    try:
        return host in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
