"""The Host protocol: whatever gives out leases is a Host, be it this process, a server or a fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from dutyfree.client.box import Box
from dutyfree.errors import InvalidRequest
from dutyfree.leases.secret import Secret, conceal, conceal_lease
from dutyfree.leases.table import Lease
from dutyfree.model import Capability, Image, Isolation, Network, Recipe, Resources, Writes

if TYPE_CHECKING:
    from dutyfree.client.groups import Group, Rollout
    from dutyfree.images.recipes.progress import Progress

Task = TypeVar("Task")
Value = TypeVar("Value")


class LeaseOptions(TypedDict, total=False):
    """The keyword arguments of `Host.lease` that groups and maps pass on."""

    resources: Resources | None
    network: Network | str
    writes: Writes | str
    env: Mapping[str, str] | None
    isolation: Isolation | str
    secrets: Mapping[str, Secret | str] | None
    files: Mapping[str, bytes] | None
    secret_files: Mapping[str, Secret | str | bytes] | None
    owner: str
    timeout_s: float | None
    ttl_s: float | None


class Host(ABC):
    """Gives out leases on sandboxes while its `async with` block lasts; at its end every lease of it ends."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    @abstractmethod
    def substrate(self) -> str:
        """The name of the substrate that makes this host's sandboxes."""

    @property
    @abstractmethod
    def isolation(self) -> Isolation:
        """The wall that its sandboxes have."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes can do here and now."""

    @abstractmethod
    async def build(
        self,
        recipe: Recipe,
        *,
        name: str | None = None,
        on_progress: Progress | None = None,
        rebuild: bool = False,
    ) -> Image:
        """The image of a recipe, under `name` if there is one; `lease(name)` then finds it.

        What was built before is found again; with `rebuild`, all of it is built anew.

        Raises BuildFailed (with the end of the log) when a line of the recipe fails, InvalidRequest for inputs that are
        not there, Unsupported where the substrate has no images, and otherwise as `lease` does.
        """

    @abstractmethod
    async def acquire(
        self,
        image: Recipe | Image | str | None = None,
        *,
        resources: Resources | None = None,
        network: Network | str = Network.NONE,
        writes: Writes | str = Writes.MEMORY,
        env: Mapping[str, str] | None = None,
        isolation: Isolation | str = "auto",
        secrets: Mapping[str, Secret | str] | None = None,
        files: Mapping[str, bytes] | None = None,
        secret_files: Mapping[str, Secret | str | bytes] | None = None,
        owner: str = "",
        key: str | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
    ) -> Box:
        """A lease on a sandbox, until `box.close()`, `release(box.lease.id)`, its expiry or the host's end.

        `image` is what the sandbox starts from: a recipe (built if need be), an image, or the name of one in the store;
        without it, the host's own root. `isolation` is the weakest wall that will do; "auto" takes what the substrate
        gives.

        `env` and `secrets` are added to the environment of each command; secrets are shown nowhere. `files` (content by
        absolute path) and `secret_files` (below /dev/shm) are written before the box is given out. `owner` names the
        party among which the host shares its places fairly. The same `key` of the same owner gives the same lease, so
        that a call whose answer was lost can be repeated. `timeout_s` bounds the wait for a sandbox. The lease expires
        after `ttl_s` unless it is renewed; by default the pool's options say when, and without a pool it does not.

        Raises InvalidRequest for a value that does not exist, Unsupported for a wall that this substrate lacks,
        CapacityError when the machine is full, LeaseLost for a key whose lease has ended, BuildFailed for a recipe that
        does not build, and SubstrateFailed, GuestMisbehaved or DeadlineExceeded when creation went wrong.
        """

    @abstractmethod
    async def get(self, lease_id: str) -> Box:
        """The box of a lease once more. Raises LeaseLost if the lease has ended or is not known."""

    @abstractmethod
    def leases(self) -> list[Lease]:
        """The leases of this host, oldest first."""

    @abstractmethod
    async def release(self, lease_id: str) -> None:
        """End a lease. Does nothing if it has ended; raises LeaseLost if it was never known."""

    @asynccontextmanager
    async def lease(
        self,
        image: Recipe | Image | str | None = None,
        *,
        resources: Resources | None = None,
        network: Network | str = Network.NONE,
        writes: Writes | str = Writes.MEMORY,
        env: Mapping[str, str] | None = None,
        isolation: Isolation | str = "auto",
        secrets: Mapping[str, Secret | str] | None = None,
        files: Mapping[str, bytes] | None = None,
        secret_files: Mapping[str, Secret | str | bytes] | None = None,
        owner: str = "",
        key: str | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
    ) -> AsyncIterator[Box]:
        """A box for the length of the block: `acquire`, then `close`. Arguments and errors are those of `acquire`."""
        secrets, secret_files = conceal(secrets), conceal(secret_files)
        box = await self.acquire(
            image,
            resources=resources,
            network=network,
            writes=writes,
            env=env,
            isolation=isolation,
            secrets=secrets,
            files=files,
            secret_files=secret_files,
            owner=owner,
            key=key,
            timeout_s=timeout_s,
            ttl_s=ttl_s,
        )
        try:
            yield box
        finally:
            await box.close()

    @abstractmethod
    def group(
        self,
        image: Recipe | Image | str | None = None,
        *,
        n: int,
        prepare: Callable[[Box], Awaitable[None]] | None = None,
        at_least: int | None = None,
        **lease: Unpack[LeaseOptions],
    ) -> AbstractAsyncContextManager[Group[Box]]:
        """`n` sandboxes alike for the length of the block, as the rollouts of one prompt need them.

        `prepare` is done once, in one of them, from which the others are then forked; where sandboxes cannot be forked,
        in each. `lease` is what `lease` takes. If some cannot be had, `failures` of the group says why; fewer than
        `at_least` (all, unless it is given) raise as `lease` does.
        """

    async def map(
        self,
        work: Callable[[Box, Task], Awaitable[Value]],
        tasks: Iterable[Task],
        *,
        image: Callable[[Task], Recipe | Image | str | None] | Recipe | Image | str | None = None,
        concurrency: int = 64,
        retries: int = 1,
        on_progress: Callable[[int, int], Any] | None = None,
        **lease: Unpack[LeaseOptions],
    ) -> list[Rollout[Task, Value]]:
        """`work(box, task)` for each task, in a sandbox of its own, `concurrency` at a time; results in task order.

        `image` is what sandboxes start from, or a function that gives it for each task. A rollout that the machinery
        failed, or for which there was no room, is begun anew in a new sandbox up to `retries` times; in the end it has
        an error, not a value. An exception of `work` itself that is not Dutyfree's ends everything and is raised.
        """
        from dutyfree.client import groups

        lease = conceal_lease(lease)
        check_shared(lease)

        def leased(task: Task) -> AbstractAsyncContextManager[Box]:
            return self.lease(image(task) if callable(image) else image, **lease)

        return await groups.roll_out(
            tasks, work, leased, concurrency=concurrency, retries=retries, on_progress=on_progress
        )


def check_shared(lease: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a key: it stands for one lease, not for one of several."""
    if lease.get("key") is not None:
        raise InvalidRequest("a key stands for one lease", hint="use it with `lease`")
