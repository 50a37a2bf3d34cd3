"""The spec of a sandbox from the arguments of a lease: those that decide which sandboxes are interchangeable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from dutyfree.errors import InvalidRequest
from dutyfree.model import Cache, Egress, Mount, Network, Resources, SandboxSpec, Writes
from dutyfree.model.mount import check_mounts

Choice = TypeVar("Choice", Network, Writes)
DEFAULT_SPEC: Final = SandboxSpec()


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


def _choice(kind: type[Choice], value: str, name: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{name} is {value!r}; it can be {', '.join(repr(str(each)) for each in kind)}") from None
