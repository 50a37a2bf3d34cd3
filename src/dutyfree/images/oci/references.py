"""Names of images as Docker users write them, and where a registry has them."""

from __future__ import annotations

import os
import re
from typing import Final

from dutyfree.errors import InvalidRequest

REGISTRY_VARIABLE: Final = "DUTYFREE_REGISTRY"
"""Where names without a registry are looked up: HOST[:PORT][/PREFIX], or `none` to fetch nothing unasked."""
DEFAULT_REGISTRY: Final = "docker.io"
NO_REGISTRY: Final = "none"
_WORD: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?:(?P<host>(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|localhost|[A-Za-z0-9-]+(?=:))(?::[0-9]+)?|\[[0-9a-f:]+\](?::[0-9]+)?)/)?"
    rf"(?P<path>{_WORD}(?:/{_WORD})*)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?P<digest>@sha256:[0-9a-f]{64})?"
)
_DIGITS: Final = re.compile(r"(?:sha256:)?[0-9a-f]{6,64}")
"""How a digest of the store begins."""
_PLACE: Final = re.compile(rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-f:]+\])(?::[0-9]+)?(?:/{_WORD})*")
_HUB: Final = ("docker.io", "index.docker.io")


def address_of(name: str, registry: str | None = None) -> str | None:
    """The address `docker://...` of a name that is fetched unasked: one with a tag, a digest or a slash.

    None for other names: a plain word is more often a mistyped name of the store. `registry` stands for Docker Hub; by
    default it is that of `DUTYFREE_REGISTRY`. Raises InvalidRequest for a registry that is none, and None if it is
    `none`.
    """
    found = None if _DIGITS.fullmatch(name) else _REFERENCE.fullmatch(name)
    registry = registry or os.environ.get(REGISTRY_VARIABLE) or DEFAULT_REGISTRY
    if found is None or registry == NO_REGISTRY or not (found["tag"] or found["digest"] or "/" in name):
        return None
    host, path = found["host"], found["path"]
    if host is None or host in _HUB:
        if not _PLACE.fullmatch(registry):
            hint = "HOST[:PORT] or HOST[:PORT]/PREFIX, without http://"
            raise InvalidRequest(f"{REGISTRY_VARIABLE} is {registry!r:.200}, which is no registry", hint=hint)
        host, path = registry, path if "/" in path else f"library/{path}"
    # skopeo takes a tag or a digest, not both; the digest says more.
    return f"docker://{host}/{path}{found['digest'] or found['tag'] or ''}"


def import_command(name: str) -> str | None:
    """The command that imports an image under this name, for hints; None if it cannot be a registry's name."""
    if _REFERENCE.fullmatch(name) is None or _DIGITS.fullmatch(name):
        return None
    address = address_of(name) or f"docker://{name}"
    return f"dutyfree image import {address} --name {name}"
