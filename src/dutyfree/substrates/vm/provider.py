"""Who makes machines: this machine's own QEMU, or a cloud."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from dutyfree.claims import Claim
from dutyfree.model import Capability, SandboxSpec, Unenforced
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.vm.ssh import Login


class Node(ABC):
    """One machine that is up, and whose SSH server answers."""

    login: Login
    unenforced: tuple[Unenforced, ...] = ()
    pid: int | None = None
    """The process of this machine that it is, where it is one."""
    has_guest: bool = False
    """Whether the guest lies in its place already."""
    is_copy: bool = False
    """Whether it goes on from a saved moment, and has to be given a clock, a name and random numbers of its own."""

    @abstractmethod
    def on_death(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the machine is known to have died; at once if it has."""

    @abstractmethod
    async def end(self) -> None:
        """Destroy it, and give back all that it held. Idempotent; raises SubstrateFailed."""


class Provider(ABC):
    """Makes machines for one substrate. Everything that it makes bears the name of the claim."""

    claims_kind: str
    """Of the claims whose names are on everything that is made."""
    accelerator: str
    """What runs the machines' instructions: every number that is measured there depends on it."""
    version: str = ""
    """What makes them."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """What depends on who makes the machines."""

    @abstractmethod
    async def open(self, claim: Claim) -> None:
        """Get ready, and remove what dead claims left, then those claims. Raises SubstrateUnavailable."""

    @abstractmethod
    async def make(self, spec: SandboxSpec, marks: Marks) -> Node:
        """A new machine; nothing is left of one that could not be made. Raises as `Substrate.create` does."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. No machine is alive any more. Idempotent.

        Raises InfraFailed where something may be left: the claim's directory, by which it is found, must stay then.
        """
