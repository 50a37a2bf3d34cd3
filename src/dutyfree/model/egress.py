"""Egress by name: which hosts the programs in a sandbox may reach, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final

from dutyfree.checked import seconds, table, text, whole, wrong
from dutyfree.errors import InvalidRequest
from dutyfree.model.hostname import Address, HostName, format_authority, parse_host, split_authority
from dutyfree.values import dataclass

DEFAULT_PORTS: Final = (80, 443)
MAX_PATTERNS: Final = 1024
"""The most patterns in one of the lists."""
MAX_HOSTS: Final = 1024
MAX_CONNECTIONS: Final = 4096
MAX_WAIT_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of a list: a name, `*.name` for all names below it, `*` for all names, or a literal address."""

    host: HostName
    """The name without `*.`; empty for `*`."""
    below: bool
    """Whether it stands for the names below `host`, and not for `host` itself."""
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern. Raises InvalidRequest."""
        if not isinstance(text, str):
            raise InvalidRequest(f"an egress pattern is {text!r}; it must be text")
        name, colon, port = text.partition(":")
        try:
            if name == "*":
                return cls("", True, split_authority(f"any{colon}{port}")[1])
            below = text.startswith("*.")
            host, number = split_authority(text[2:] if below else text)
        except ValueError as error:
            hint = "use 'name', '*.name' or '*', each with or without ':port', or a literal address"
            raise InvalidRequest(f"egress pattern {text!r}: {error}", hint=hint) from None
        if below and not isinstance(host, str):
            raise InvalidRequest(f"egress pattern {text!r}: there are no names below an address")
        return cls(host, below, number)

    def covers(self, host: HostName) -> bool:
        """Whether the pattern stands for this host, whatever the port."""
        if not self.below:
            return host == self.host
        return isinstance(host, str) and (not self.host or host.endswith(f".{self.host}"))

    def __str__(self) -> str:
        host = f"*.{self.host}" if self.below and self.host else self.host or "*"
        if self.port is not None:
            return format_authority(host, self.port)
        return f"[{host}]" if ":" in str(host) else str(host)


@dataclass(frozen=True, slots=True)
class Egress:
    """What the programs of a lease may reach, by name. All else is refused, and recorded.

    A pattern is `name`, `*.name` (all names below it) or `*` (all names), with `:port`; without one it stands for
    ports 80 and 443, and in `deny` for all ports. A literal address is reached only if it is written out. Raises
    InvalidRequest for anything else.
    """

    allow: Iterable[str] = ()
    deny: Iterable[str] = ()
    """Refused, although `allow` or `private` has it."""
    private: Iterable[str] = ()
    """Allowed, also if the name has a private or loopback address: internal mirrors."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses of names that are not looked up, as in /etc/hosts: `address`, or `address:port` to change the port
    too. They are checked as if they had been looked up."""
    max_connections: int = 256
    """At the same time. Further ones wait."""
    max_bytes: int = 64 * 1024**3
    """Of all connections together, both ways; then they are closed and further ones are refused."""
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    """A connection on which nothing is sent for this long is closed."""

    def __post_init__(self) -> None:
        for name in ("allow", "deny", "private"):
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))
        object.__setattr__(self, "hosts", MappingProxyType(_hosts(self.hosts)))
        whole("max_connections", self.max_connections, least=1, most=MAX_CONNECTIONS)
        whole("max_bytes", self.max_bytes, least=0)
        for name in ("connect_timeout_s", "idle_timeout_s"):
            seconds(name, getattr(self, name), most_s=MAX_WAIT_S)


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """One connection out of a sandbox, or one that was refused."""

    name: str
    """The name or literal address that the program asked for; what it wrote, if that was neither."""
    port: int
    """0 for a name that was only looked up."""
    how: str
    """`connect`, `http`, `socks`, `direct` (through the sandbox's resolver) or `dns` (a refused lookup)."""
    allowed: bool
    rule: str
    """The rule that allowed or refused it, or the reason that it was refused."""
    address: str
    """Where the connection went; empty where none was made."""
    sent_bytes: int
    received_bytes: int
    start_s: float
    """Seconds since 1970."""
    duration_s: float
    end: str
    """How it ended: `closed`, `idle`, `failed: ...`, `open` if it lasts, and so on."""

    def __str__(self) -> str:
        verdict = "allowed" if self.allowed else "refused"
        target = f"{self.name}:{self.port}" if self.port else self.name
        moved = (
            f", {self.sent_bytes} B out, {self.received_bytes} B in, {self.duration_s:.3f} s" if self.address else ""
        )
        return f"{verdict} {target} ({self.how}, {self.rule}{moved}, {self.end})"


def static_address(text: str) -> tuple[Address, int | None]:
    """The address and port of an entry of `Egress.hosts`. Raises InvalidRequest."""
    try:
        host, port = split_authority(text if not text.count(":") > 1 or "[" in text else f"[{text}]")
    except ValueError as error:
        raise InvalidRequest(f"egress hosts: {error}") from None
    if isinstance(host, str):
        raise InvalidRequest(f"egress hosts: {text!r} is not an address")
    return host, port


def _patterns(name: str, entries: Iterable[str]) -> tuple[str, ...]:
    if isinstance(entries, str):
        raise InvalidRequest(f"egress {name} is one text; it must be a list", hint=f"{name}=[{entries!r}]")
    if not isinstance(entries, Iterable):
        raise wrong(f"egress {name}", entries, "a list of patterns")
    patterns = tuple(dict.fromkeys(str(Pattern.parse(each)) for each in entries))
    if len(patterns) > MAX_PATTERNS:
        raise InvalidRequest(f"egress {name} has {len(patterns)} patterns; the limit is {MAX_PATTERNS}")
    return patterns


def _hosts(entries: Mapping[str, str]) -> dict[str, str]:
    if len(table("egress hosts", entries)) > MAX_HOSTS:
        raise InvalidRequest(f"egress hosts has {len(entries)} names; the limit is {MAX_HOSTS}")
    normal = {}
    for name, address in entries.items():
        try:
            host = parse_host(text("a name in egress hosts", name))
        except ValueError as error:
            raise InvalidRequest(f"egress hosts: {error}") from None
        if not isinstance(host, str):
            raise InvalidRequest(f"egress hosts: {name!r} is an address, not a name")
        static_address(text(f"egress hosts[{name!r:.80}]", address))
        normal[host] = address
    return normal
