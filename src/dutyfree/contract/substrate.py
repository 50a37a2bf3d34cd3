"""A substrate: what creates sandboxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dutyfree.contract.sandbox import Sandbox
from dutyfree.errors import Unsupported
from dutyfree.model import Capability, Image, Isolation, Network, SandboxSpec, Span

if TYPE_CHECKING:
    from dutyfree.images.store import Store

SpanListener = Callable[[Span], None]
"""Called with each span as it ends. `None` in place of a listener makes recording cost one comparison."""

_NETWORKS = {Network.HOST: Capability.HOST_NETWORK, Network.BRIDGE: Capability.BRIDGE_NETWORK}


class Substrate(ABC):
    """A mechanism that creates sandboxes."""

    name: str
    """What people call it: `process`, `cell`, `docker` ..."""
    isolation: Isolation
    """The strongest wall that its sandboxes are claimed and probed to have."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes can do on this machine; complete after `open`."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready to create sandboxes.

        Raises SubstrateUnavailable (with a hint) where the substrate cannot work on this machine.
        """

    @abstractmethod
    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        """A new sandbox, ready for its first action.

        Raises InvalidRequest for a spec that cannot be met, CapacityError when the machine is full, SubstrateFailed,
        GuestMisbehaved or DeadlineExceeded when creation went wrong. Nothing is left of a creation that raised.
        """

    def check(self, spec: SandboxSpec) -> None:
        """Raise Unsupported for a spec that takes a capability which the substrate lacks: for `create` to begin with.

        Limits that it lacks are no error: `Sandbox.unenforced` names them.
        """
        if (spec.image.layers or spec.image.reference) and Capability.IMAGES not in self.capabilities:
            raise Unsupported(f"substrate {self.name!r} cannot start sandboxes from images", hint="use cells")
        needed = _NETWORKS.get(spec.network)
        if needed is not None and needed not in self.capabilities:
            raise Unsupported(f"substrate {self.name!r} has no network of the kind {spec.network.value!r}")
        if spec.mounts and Capability.MOUNTS not in self.capabilities:
            reason = self.without_mounts or f"substrate {self.name!r} cannot show files of the host"
            raise Unsupported(reason, hint="use cells, or put the files into an image")
        if spec.caches and Capability.CACHES not in self.capabilities:
            reason = (
                f"substrate {self.name!r} has no caches: it gives a sandbox no writable layer that can be read apart"
            )
            raise Unsupported(reason, hint="use cells, or put the files into an image")

    @property
    def without_mounts(self) -> str:
        """Why it lacks `Capability.MOUNTS` on this machine, where there is more to say than that it does."""
        return ""

    @property
    def emulated(self) -> bool:
        """Whether its sandboxes run on processors emulated in software: a caveat to every number about them."""
        return False

    @property
    def version(self) -> str:
        """Name and version of the third-party engine that runs its sandboxes, if there is one; known after `open`."""
        return ""

    @property
    def snapshots_hold_memory(self) -> bool:
        """Whether snapshots and forks are made from all that is in a sandbox's memory, secrets included."""
        return False

    @property
    def has_default_image(self) -> bool:
        """Whether it can create a sandbox from a spec that names no image."""
        return True

    @property
    def store(self) -> Store | None:
        """Where its images are kept; None where it has none of its own."""
        return None

    @property
    def builds_with(self) -> str | None:
        """The name of the substrate that runs the lines of recipes for it; None where it does so itself."""
        return None

    def named_image(self, name: str) -> Image:
        """The image of this name, to start sandboxes from. Raises InvalidRequest; Unsupported where there are none."""
        raise Unsupported(f"substrate {self.name!r} has no images")

    @abstractmethod
    async def close(self) -> None:
        """Destroy every sandbox that is still alive, and free all resources. Idempotent; raises SubstrateFailed."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
