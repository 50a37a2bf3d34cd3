"""What clients of a node may ask for: its operator decides what of the machine they can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability, Egress, Mount, Network


@dataclass(frozen=True, slots=True)
class Rules:
    """The defaults let a client reach nothing of the node's machine and of its network."""

    networks: tuple[str, ...] = ("none",)
    """The kinds of networks that sandboxes may have."""
    egress: bool = True
    """Whether leases may reach public hosts by name."""
    private_egress: bool = False
    """Whether they may also name hosts with private addresses, and addresses of names."""
    mounts: tuple[str, ...] = ()
    """Directories of the node's machine that may be shown in sandboxes, with all that is below them."""

    def allowed(self, capabilities: frozenset[Capability]) -> frozenset[Capability]:
        """Those of the host's capabilities that clients can use."""
        refused = {
            Capability.HOST_NETWORK: "host" not in self.networks,
            Capability.BRIDGE_NETWORK: "bridge" not in self.networks,
            Capability.EGRESS: not self.egress,
            Capability.MOUNTS: not self.mounts,
        }
        return frozenset(each for each in capabilities if not refused.get(each, False))

    def check_network(self, network: Network | Egress | str) -> Network | Egress | str:
        """The network. Raises InvalidRequest for one that is not allowed."""
        if isinstance(network, Egress):
            return self.check_egress(network)
        if str(network) not in self.networks:
            hint = f"this server allows: {', '.join(self.networks)}"
            raise InvalidRequest(f"sandboxes of this server cannot have the network {str(network)!r:.40}", hint=hint)
        return network

    def check_egress(self, egress: Egress) -> Egress:
        """The rules of egress. Raises InvalidRequest for those that are not allowed."""
        if not self.egress:
            raise InvalidRequest("sandboxes of this server have no egress", hint="the operator can allow it")
        if not self.private_egress and (tuple(egress.private) or egress.hosts):
            hint = "leave `private` and `hosts` out; the operator can allow them"
            raise InvalidRequest("sandboxes of this server reach no private addresses", hint=hint)
        return egress

    def check_mounts(self, mounts: Sequence[Mount]) -> tuple[Mount, ...]:
        """The mounts. Raises InvalidRequest for a source that is not below an allowed directory."""
        for mount in mounts:
            # A link could lead out of an allowed directory: what it leads to counts.
            source = Path(mount.source).resolve()
            if not any(source.is_relative_to(Path(allowed).resolve()) for allowed in self.mounts):
                raise InvalidRequest(f"this server does not show {str(mount.source)!r:.200} in sandboxes")
        return tuple(mounts)
