"""From the arguments of a lease: its spec, which decides what sandboxes can be used, and what is bound to it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Final, TypeVar

from dutyfree.checked import by_path, contents, path_or_none, table
from dutyfree.errors import InvalidRequest
from dutyfree.leases.binding import NOTHING, Binding
from dutyfree.leases.secret import Secret
from dutyfree.model import Cache, Egress, Mount, Network, Resources, SandboxSpec, User, Writes
from dutyfree.model.mount import check_mounts

Choice = TypeVar("Choice", Network, Writes)
DEFAULT_SPEC: Final = SandboxSpec()
IMAGE_USER: Final = "image"
"""As the user of a lease: the one that the image's author chose."""


def spec_of(
    resources: Resources | None,
    network: Network | Egress | str,
    writes: Writes | str,
    mounts: Sequence[Mount],
    caches: tuple[Cache, ...] = (),
) -> SandboxSpec:
    """The spec, without an image. Raises InvalidRequest for an unknown network or place of writes."""
    if isinstance(network, Egress):
        network = Network.NONE  # the sandbox has none, and can be a warm one: its egress belongs to the lease
    if resources is None and network is Network.NONE and writes is Writes.MEMORY and not mounts and not caches:
        return DEFAULT_SPEC
    return SandboxSpec(
        resources=resources if resources is not None else DEFAULT_SPEC.resources,
        network=_choice(Network, network, "network"),
        writes=_choice(Writes, writes, "writes"),
        mounts=mounts if isinstance(mounts, tuple) else check_mounts(mounts),
        caches=caches,
    )


def binding_of(
    env: Mapping[str, str] | None,
    secrets: Mapping[str, Secret | str] | None,
    files: Mapping[str, bytes | str] | None,
    secret_files: Mapping[str, Secret | str | bytes] | None,
    uploads: Mapping[str, str | PathLike[str]] | None,
    workdir: str | None,
    user: User | None,
    egress: Egress | None = None,
) -> Binding:
    """What belongs to the lease alone. Raises InvalidRequest for a wrong value."""
    places = uploads or workdir is not None
    if not (env or secrets or files or secret_files or places or user is not None or egress is not None):
        return NOTHING
    return Binding(
        env=table("env", env or {}),
        secrets=table("secrets", secrets or {}),
        files=contents("files", files or {}),
        secret_files=by_path("secret_files", secret_files or {}),
        uploads=by_path("uploads", uploads or {}),
        workdir=path_or_none("workdir", workdir),
        user=user,
        egress=egress,
    )


def _choice(kind: type[Choice], value: str, name: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{name} is {value!r}; it can be {', '.join(repr(str(each)) for each in kind)}") from None
