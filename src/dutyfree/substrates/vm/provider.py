"""The interface of machine providers: QEMU on this host, or a cloud."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from dutyfree.claims import Claim
from dutyfree.model import Capability, SandboxSpec, Unenforced
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.vm.ssh import Login


class Node(ABC):
    """One running machine whose SSH server answers."""

    login: Login
    unenforced: tuple[Unenforced, ...] = ()
    pid: int | None = None
    """The machine's process on this host; None in a cloud."""
    has_guest: bool = False
    """Whether the guest is installed already."""
    is_copy: bool = False
    """Whether the machine was restored, and so needs its own clock, hostname and random seed."""

    @abstractmethod
    def on_death(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when the machine is known to have died; at once if it has died already."""

    @abstractmethod
    async def end(self) -> None:
        """Destroy the machine, and release all that it held. Idempotent; raises SubstrateFailed."""


class Provider(ABC):
    """Makes machines for one substrate. All that it makes is named after the claim."""

    claims_kind: str
    """Of the claims whose names are on everything that is made."""
    accelerator: str
    """What executes the machines' instructions (`kvm`, `tcg`, `cloud:NAME`): every measured number depends on it."""
    version: str = ""
    """The version of the program that makes the machines."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that depend on the provider."""

    @abstractmethod
    async def open(self, claim: Claim) -> None:
        """Get ready, and remove what dead claims left, then those claims. Raises SubstrateUnavailable."""

    @abstractmethod
    async def make(self, spec: SandboxSpec, marks: Marks) -> Node:
        """Make a machine. If this fails, nothing of the machine is left. Raises as `Substrate.create` does."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. All machines have ended before. Idempotent.

        Raises InfraFailed if a machine may be left: the caller must then keep the claim's directory, which lists it.
        """
