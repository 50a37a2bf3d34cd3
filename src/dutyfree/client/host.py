"""The Host interface: this process, a server or a fleet can be a host, which gives out leases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from dutyfree.checked import FilePath
from dutyfree.client.box import Box
from dutyfree.client.lease_block import LeaseBlock
from dutyfree.errors import InvalidRequest
from dutyfree.leases.secret import Secret, conceal, conceal_lease
from dutyfree.leases.table import Lease
from dutyfree.model import (
    Bill,
    Cache,
    Capability,
    Egress,
    Image,
    Isolation,
    Mount,
    Network,
    Recipe,
    Resources,
    User,
    Writes,
)

if TYPE_CHECKING:
    from dutyfree.client.groups import Group, Rollouts
    from dutyfree.images.recipes.progress import Progress

Task = TypeVar("Task")
Value = TypeVar("Value")


class LeaseOptions(TypedDict, total=False):
    """The keyword arguments of `Host.lease` that groups and maps pass on."""

    resources: Resources | None
    network: Network | Egress | str
    writes: Writes | str
    env: Mapping[str, str] | None
    isolation: Isolation | str
    secrets: Mapping[str, Secret | str] | None
    files: Mapping[str, bytes | str] | None
    secret_files: Mapping[str, Secret | str | bytes] | None
    uploads: Mapping[str, str | PathLike[str]] | None
    workdir: str | None
    user: User | None
    mounts: Sequence[Mount]
    caches: Sequence[Cache]
    owner: str
    labels: Mapping[str, str] | None
    timeout_s: float | None
    ttl_s: float | None
    strict: bool


class Host(ABC):
    """Gives out leases on sandboxes while its `async with` block lasts. All its leases end with the block."""

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
        """The isolation of its sandboxes."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of its sandboxes on this machine."""

    @abstractmethod
    async def build(
        self,
        recipe: Recipe,
        *,
        name: str | None = None,
        on_progress: Progress | None = None,
        rebuild: bool = False,
    ) -> Image:
        """Build the image of a recipe. With a `name`, it is stored under it, and `lease(name)` finds it.

        Stages that were built before are used again; with `rebuild`, all stages are built anew.

        Raises BuildFailed (with the end of the log) when a line of the recipe fails, InvalidRequest for missing inputs,
        Unsupported if the substrate has no images, and otherwise as `lease` does.
        """

    @abstractmethod
    async def acquire(
        self,
        image: Recipe | Image | str | None = None,
        *,
        resources: Resources | None = None,
        network: Network | Egress | str = Network.NONE,
        writes: Writes | str = Writes.MEMORY,
        env: Mapping[str, str] | None = None,
        isolation: Isolation | str = "auto",
        secrets: Mapping[str, Secret | str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        secret_files: Mapping[str, Secret | str | bytes] | None = None,
        uploads: Mapping[str, str | PathLike[str]] | None = None,
        workdir: str | None = None,
        user: User | None = None,
        mounts: Sequence[Mount] = (),
        caches: Sequence[Cache] = (),
        owner: str = "",
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        strict: bool = False,
    ) -> Box:
        """Lease a sandbox until `box.close()`, `release(box.lease.id)`, the expiry of the lease or the host's end.

        The sandbox starts from `image`: a recipe (which is built if necessary), an image, or the name of one in the
        store; by default from the host's own root. `isolation` is the weakest isolation that is allowed; "auto" allows
        that of the substrate.

        `network` is a kind of network, or an `Egress`: then the sandbox has none, and its programs reach the named
        hosts through this process.

        `env` and `secrets` are added to the environment of each command; secrets are never printed or logged. `files`
        (content by absolute path) and `secret_files` (below /dev/shm) are written before this returns, and `uploads`,
        local files and directories by absolute path in the sandbox, are streamed in. Commands run in `workdir`, by
        default the directory that the image names. Commands and
        `box.files` act as `user`, a name or a uid of the sandbox, who owns the secret files, too; by default as root.
        `mounts` are directories and files of the host that the sandbox sees, read-only. `caches` are directories that
        it shares with others of the same owner: it sees the version of when it was made, changes a copy of its own,
        and `box.save_cache` adds its files to the next version.

        The host shares its places fairly between owners; `owner` names the one of this lease. A repeated call with the
        same `owner` and `key` gets the same lease, so that a caller can retry when an answer was lost. `labels` are
        kept with the lease for `find_leases`; they do not influence the sandbox or the pool. `timeout_s` bounds the
        wait for a sandbox. The lease expires after `ttl_s` unless it is renewed; by default after the time in the
        pool's options, and without a pool never.

        If the sandbox lacks a limit or wall that was asked for, by default or not, the host gives an UnenforcedWarning,
        once for each kind. With `strict` it gives the sandbox back, and raises Unsupported.

        Raises InvalidRequest for an invalid value, Unsupported if the substrate isolates less than required or has no
        users, CapacityError when the machine is full, LeaseLost for a key whose lease has ended, BuildFailed for a
        recipe that does not build, and SubstrateFailed, GuestMisbehaved or DeadlineExceeded when the creation fails.
        """

    @abstractmethod
    async def get(self, lease_id: str) -> Box:
        """The box of an existing lease. Raises LeaseLost if the lease has ended or is not known."""

    @abstractmethod
    def leases(self) -> list[Lease]:
        """The leases of this host, oldest first."""

    @abstractmethod
    async def find_leases(self, *, owner: str | None = None, labels: Mapping[str, str] | None = None) -> list[Lease]:
        """The leases of this owner that have all of these labels, oldest first; by default all leases."""

    @abstractmethod
    async def release(self, lease_id: str) -> None:
        """End a lease. Does nothing if it has ended; raises LeaseLost if it is not known."""

    @abstractmethod
    def bill(self, *, advice: str | Path | None = None) -> Bill:
        """What leases, and the pool behind them, have cost since the host was opened; also after its end.

        Its projections to other substrates use the measurements in the file `advice`, which `dutyfree advise --json`
        has printed, or built-in ones. Raises InvalidRequest for another file, and for a host that was never open.
        """

    def lease(
        self,
        image: Recipe | Image | str | None = None,
        *,
        resources: Resources | None = None,
        network: Network | Egress | str = Network.NONE,
        writes: Writes | str = Writes.MEMORY,
        env: Mapping[str, str] | None = None,
        isolation: Isolation | str = "auto",
        secrets: Mapping[str, Secret | str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        secret_files: Mapping[str, Secret | str | bytes] | None = None,
        uploads: Mapping[str, str | PathLike[str]] | None = None,
        workdir: str | None = None,
        user: User | None = None,
        mounts: Sequence[Mount] = (),
        caches: Sequence[Cache] = (),
        owner: str = "",
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        strict: bool = False,
    ) -> AbstractAsyncContextManager[Box]:
        """A box for the length of the block: `acquire`, then `close`. Arguments and errors are those of `acquire`."""
        secrets, secret_files = conceal(secrets), conceal(secret_files)
        acquire = partial(
            self.acquire,
            image,
            resources=resources,
            network=network,
            writes=writes,
            env=env,
            isolation=isolation,
            secrets=secrets,
            files=files,
            secret_files=secret_files,
            uploads=uploads,
            workdir=workdir,
            user=user,
            mounts=mounts,
            caches=caches,
            owner=owner,
            key=key,
            labels=labels,
            timeout_s=timeout_s,
            ttl_s=ttl_s,
            strict=strict,
        )
        return LeaseBlock(acquire)

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
        """`n` equal sandboxes for the length of the block, for the rollouts of one prompt.

        `prepare` runs once, in one sandbox, and the others are forked from it. If the substrate has no forks, it runs
        in each. The other arguments are those of `lease`. The group's `failures` has the errors of sandboxes that could
        not be leased; with fewer than `at_least` sandboxes (by default `n`), this raises as `lease` does.
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
        logs: FilePath | None = None,
        **lease: Unpack[LeaseOptions],
    ) -> Rollouts[Task, Value]:
        """Run `work(box, task)` for each task in its own sandbox, `concurrency` at a time; results in task order.

        Sandboxes start from `image`, which may be a function of the task. If the infrastructure fails a rollout, or has
        no room for it, it begins again in a new sandbox, up to `retries` times; if all tries fail, its result has an
        error and no value. An exception of `work` that is not a DutyfreeError cancels all rollouts and is raised.

        The result is a list. Its `summary` says in one line what the rollouts have cost; it is also logged, by the
        logger `dutyfree` at the level INFO. With `logs`, a directory, each rollout has a file there, `00000.log` for
        the first task and so on: what its boxes ran (`Box.log_to`), try by try, and what the work returned or raised.
        """
        from dutyfree.client import groups

        lease = conceal_lease(lease)
        check_shared(lease)

        def leased(task: Task) -> AbstractAsyncContextManager[Box]:
            return self.lease(image(task) if callable(image) else image, **lease)

        return await groups.roll_out(
            tasks, work, leased, concurrency=concurrency, retries=retries, on_progress=on_progress, logs=logs
        )


def check_shared(lease: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a key: it identifies a single lease, and groups and maps make several."""
    if lease.get("key") is not None:
        raise InvalidRequest("a key identifies a single lease", hint="use it with `lease`")
