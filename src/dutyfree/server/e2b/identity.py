"""Ids and tokens of sandboxes, all derived from one secret in the labels of the lease: any gateway knows them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from typing import Final

from dutyfree.leases.table import Lease

PREFIX: Final = "e2b:"
"""Labels of the face itself; all others are the client's metadata."""
SECRET: Final = "e2b:secret"
TEMPLATE: Final = "e2b:template"
NETWORK: Final = "e2b:network"
PAUSED: Final = "e2b:paused"
PRIVATE: Final = "e2b:private"
"""Set if the sandbox's ports need a token."""
_SUFFIX_CHARACTERS: Final = 16


def new_secret() -> str:
    """The secret of a new lease."""
    return secrets.token_hex(16)


def sandbox_id(lease: Lease) -> str:
    """The id that clients see: that of the lease, and a part that nobody can guess."""
    return f"{lease.id}-{_derive(lease.labels, 'id')[:_SUFFIX_CHARACTERS]}"


def lease_id(sandbox: str) -> str:
    """The id of the lease that a sandbox's id begins with."""
    return sandbox.rpartition("-")[0]


def is_id_of(lease: Lease, sandbox: str) -> bool:
    """Whether this is the id of the lease's sandbox. Leases of other faces have none."""
    return SECRET in lease.labels and hmac.compare_digest(sandbox_id(lease).encode(), sandbox.encode())


def daemon_token(lease: Lease) -> str:
    """The token for commands and files. It names the sandbox, for clients that do not do so in their headers."""
    return f"{sandbox_id(lease)}.{_derive(lease.labels, 'daemon')}"


def traffic_token(lease: Lease) -> str:
    """The token for ports that are not public."""
    return _derive(lease.labels, "traffic")


def is_token(given: str | None, expected: str) -> bool:
    """Whether a token is the expected one, in constant time."""
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def metadata(lease: Lease) -> dict[str, str]:
    """What the client has noted."""
    return {name: value for name, value in lease.labels.items() if not name.startswith(PREFIX)}


def is_signed(
    signature: str,
    expiration: str | None,
    *,
    path: str,
    operation: str,
    user: str,
    token: str,
    now_s: float | None = None,
) -> bool:
    """Whether a URL is signed as E2B's clients sign, and has not expired."""
    parts = [path, operation, user, token]
    if expiration is not None:
        if not (expiration.isascii() and expiration.isdigit() and len(expiration) < 16):
            return False
        if int(expiration) < (time.time() if now_s is None else now_s):
            return False
        parts.append(expiration)
    digest = hashlib.sha256(":".join(parts).encode("utf-8", "surrogateescape")).digest()
    expected = b"v1_" + base64.b64encode(digest).rstrip(b"=")
    return hmac.compare_digest(signature.encode("utf-8", "replace"), expected)


def _derive(labels: Mapping[str, str], purpose: str) -> str:
    return hmac.new(labels[SECRET].encode(), purpose.encode(), hashlib.sha256).hexdigest()
