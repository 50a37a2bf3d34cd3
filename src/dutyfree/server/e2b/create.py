"""Creations: from the JSON of a request to a lease."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.client.box import Box
from dutyfree.client.host import Host
from dutyfree.errors import InvalidRequest
from dutyfree.leases.table import MAX_LABELS
from dutyfree.model import Capability, Egress, Image, Network
from dutyfree.server.e2b import identity
from dutyfree.server.e2b.connect import JsonObject
from dutyfree.server.e2b.errors import not_implemented
from dutyfree.server.e2b.forms import network_label
from dutyfree.server.e2b.network import read_network
from dutyfree.server.e2b.settings import Settings
from dutyfree.server.e2b.snapshots import read_snapshot_id

MAX_METADATA: Final = MAX_LABELS - 8
_KEY: Final = re.compile(r"[a-z0-9-]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Creation:
    """What a client wants: everything in it is kept, or was refused."""

    template: str
    image: Image | str | None
    timeout_s: float
    env: dict[str, str]
    network: Network | Egress
    labels: dict[str, str]
    key: str | None = None

    async def acquire(self, host: Host, owner: str, settings: Settings) -> Box:
        """Make it. Raises as `Host.acquire` does."""
        box = await host.acquire(
            self.image,
            resources=settings.resources,
            network=self.network,
            env=self.env,
            owner=owner,
            key=self.key,
            labels=self.labels,
            timeout_s=settings.acquire_timeout_s,
            ttl_s=self.timeout_s,
        )
        box.detach()
        return box


def read_creation(
    body: JsonObject, key: str | None, settings: Settings, capabilities: frozenset[Capability]
) -> Creation:
    """Read a creation. Raises InvalidRequest for wrong values, and HttpError 501 for what this server cannot keep."""
    _refuse_unsupported(body)
    template = _text(body, "templateID") or "base"
    network = _object(body, "network")
    internet = _flag(body, "allow_internet_access", "allowInternetAccess")
    has_egress = Capability.EGRESS in capabilities
    if internet and not has_egress:
        raise not_implemented("sandboxes of this server have no internet access: its substrate has no egress by name")
    wanted = read_network(internet, network, default_internet=settings.internet and (has_egress or bool(network)))
    labels = _metadata(body)
    labels[identity.SECRET] = identity.new_secret()
    labels[identity.TEMPLATE] = template
    if internet is not None or network:
        labels |= network_label(internet, network)
    public = network.get("allowPublicTraffic") if network else None
    if not (settings.public_ports if public is None else public is True):
        labels[identity.PRIVATE] = "1"
    return Creation(
        template,
        image_of(template, settings),
        read_timeout(body.get("timeout"), settings),
        _texts(_object(body, "envVars") or {}, "envVars"),
        wanted,
        labels,
        _key(key),
    )


def image_of(template: str, settings: Settings) -> Image | str | None:
    """The image that a template stands for."""
    if template in settings.templates:
        return settings.templates[template]
    return read_snapshot_id(template) or template


def read_timeout(value: object, settings: Settings) -> float:
    """The lifetime that a client asks for, in seconds. Raises InvalidRequest."""
    if value is None:
        return settings.default_timeout_s
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= settings.max_timeout_s:
        raise InvalidRequest(f"timeout is {value!r:.40}; it must be 0 to {settings.max_timeout_s:.0f} seconds")
    return max(float(value), 0.001)


def _refuse_unsupported(body: JsonObject) -> None:
    if body.get("autoPause"):
        raise not_implemented("sandboxes cannot be paused when their time is over; pause them before")
    resume = body.get("autoResume")
    if (isinstance(resume, dict) and resume.get("enabled", True)) or resume is True:
        raise not_implemented("paused sandboxes are not resumed by traffic; connect to them")
    for name, what in (("mcp", "MCP gateways"), ("iam", "workload identities"), ("volumeMounts", "volumes")):
        if body.get(name):
            raise not_implemented(f"{what} are not supported by this server")


def _metadata(body: JsonObject) -> dict[str, str]:
    metadata = _texts(_object(body, "metadata") or {}, "metadata")
    if any(name.startswith(identity.PREFIX) for name in metadata):
        raise InvalidRequest(f"names of metadata that begin with {identity.PREFIX!r} are the server's own")
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"{len(metadata)} entries of metadata; the limit is {MAX_METADATA}")
    return metadata


def _key(key: str | None) -> str | None:
    """The key of the lease. Hashed: keys of leases are shorter, and other faces have keys of their own."""
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest("Idempotency-Key must be 1 to 255 lowercase letters, digits or hyphens")
    return f"e2b:{hashlib.sha256(key.encode()).hexdigest()}"


def _text(body: JsonObject, name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > 4096:
        raise InvalidRequest(f"{name} must be a text of at most 4096 characters")
    return value


def _flag(body: JsonObject, *names: str) -> bool | None:
    for name in names:
        value = body.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false")
        if isinstance(value, bool):
            return value
    return None


def _object(body: JsonObject, name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be an object")
    return value


def _texts(table: dict[str, Any], name: str) -> dict[str, str]:
    if not all(isinstance(value, str) for value in table.values()):
        raise InvalidRequest(f"the values of {name} must be texts")
    return table
