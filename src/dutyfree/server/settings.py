"""The settings of a server: one TOML file, sensible without one."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.places import runtime_directory, state_directory
from dutyfree.pool.options import PoolOptions
from dutyfree.server.node.rules import Rules
from dutyfree.tables import Table

DEFAULT_NATIVE: Final = "127.0.0.1:7480"
DEFAULT_HTTP: Final = "127.0.0.1:7481"
MAX_GATEWAYS: Final = 64
POOL_DEFAULTS: Final[Mapping[str, Any]] = {"sandboxes": 1000, "timeout_s": 60.0}
"""What a server's pool has instead of the defaults of `PoolOptions`."""


@dataclass(frozen=True, slots=True)
class Warm:
    """Sandboxes of one image that are kept ready."""

    image: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of `dutyfree serve`."""

    native: str = DEFAULT_NATIVE
    """Where native clients connect, `ADDRESS:PORT`; empty for none but those of this machine."""
    http: str = DEFAULT_HTTP
    """Where the HTTP faces are; empty for none."""
    gateways: int = 1
    domain: str = ""
    """The domain whose names `PORT-SANDBOX.DOMAIN` lead to ports of sandboxes."""
    directory: Path = field(default_factory=lambda: state_directory() / "server")
    """What the node remembers: tokens and leases."""
    socket: Path = field(default_factory=lambda: runtime_directory() / "node.socket")
    """The socket for native clients of this machine."""
    certificate: Path | None = None
    key: Path | None = None
    substrate: str = "cell"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the substrate."""
    image: str | None = None
    """What a lease starts from that names no image; by default the substrate's own default."""
    pool: PoolOptions = field(default_factory=lambda: PoolOptions(**POOL_DEFAULTS))
    warm: tuple[Warm, ...] = ()
    rules: Rules = field(default_factory=Rules)
    drain_s: float = 30.0
    """How long a planned stop waits for leases to end."""
    allow_filesystem_snapshots: bool = False
    """Whether E2B clients that ask for a snapshot with memory get one of the files alone."""

    def __post_init__(self) -> None:
        for name in ("native", "http"):
            if getattr(self, name):
                endpoint(getattr(self, name))
        if not self.native and not self.http:
            raise InvalidRequest("a server without `native` and without `http` serves no client")
        if not 1 <= self.gateways <= MAX_GATEWAYS:
            raise InvalidRequest(f"gateways is {self.gateways}; it can be 1 to {MAX_GATEWAYS}")
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest("TLS needs both `certificate` and `key`")

    def tls(self) -> ssl.SSLContext | None:
        """The settings of TLS; None without a certificate. Raises InvalidRequest for files that cannot be used."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"the certificate {str(self.certificate)!r} cannot be used: {error}") from None
        return context


def endpoint(value: str) -> tuple[str, int]:
    """`ADDRESS:PORT` as a pair. Raises InvalidRequest."""
    address, colon, port = value.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise InvalidRequest(f"{value!r} is not ADDRESS:PORT, such as {DEFAULT_NATIVE}")
    return address.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def load_settings(path: Path | None) -> Settings:
    """The settings in a file; the defaults without one. Raises InvalidRequest, which names the place."""
    if path is None:
        return Settings()
    return read_settings(Table(tables.read_document(path, "settings file"), str(path)), path.parent)


def read_settings(top: Table, base: Path) -> Settings:
    """The settings in a document; relative paths are relative to `base`."""
    top.allow("server", "substrate", "pool", "warm", "rules")
    server, substrate = top.under("server"), top.under("substrate")
    texts, paths = ("native", "http", "domain"), ("directory", "socket", "certificate", "key")
    server.allow(*texts, *paths, "gateways", "drain_s", "allow_filesystem_snapshots")
    values: dict[str, Any] = {name: server.required(name, tables.text) for name in texts if name in server.content}
    values |= {name: base / server.required(name, tables.nonempty_text) for name in paths if name in server.content}
    for name, kind in (("gateways", _whole), ("drain_s", tables.nonnegative), ("allow_filesystem_snapshots", _flag)):
        if name in server.content:
            values[name] = server.required(name, kind)
    if substrate.content:
        rest = {name: value for name, value in substrate.content.items() if name not in ("name", "image")}
        values |= {"substrate": substrate.given("name", tables.nonempty_text, "cell"), "options": rest}
        values["image"] = substrate.given("image", tables.nonempty_text, None)
    return top.checked(None, lambda: Settings(**values, **_parts(top)))


def _parts(top: Table) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    pool, rules = top.under("pool"), top.under("rules")
    if pool.content:
        pool.allow(*(each.name for each in fields(PoolOptions)))
        parts["pool"] = pool.checked(
            None, lambda: PoolOptions(**{"sandboxes": 1000, "timeout_s": 60.0, **pool.content})
        )
    if rules.content:
        lists = dict.fromkeys(("networks", "mounts"), tables.texts)
        rules.allow(*lists, "egress", "private_egress")
        given: dict[str, Any] = {
            name: tuple(rules.required(name, tables.texts)) for name in lists if name in rules.content
        }
        given |= {name: rules.required(name, _flag) for name in ("egress", "private_egress") if name in rules.content}
        parts["rules"] = Rules(**given)
    warm = []
    for entry in top.each("warm"):
        entry.allow("image", "count")
        warm.append(Warm(entry.given("image", tables.nonempty_text, None), entry.required("count", _whole)))
    return {**parts, "warm": tuple(warm)}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(tables.texts(value))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest("a whole number that is not negative is wanted")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest("true or false is wanted")
    return value
