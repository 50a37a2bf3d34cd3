"""Sandboxes on this machine, embedded in this process: no daemon, nothing to install first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from dutyfree.checked import function, seconds, text, whole, wrong
from dutyfree.client.box import Box
from dutyfree.client.host import Host, LeaseOptions
from dutyfree.client.specs import IMAGE_USER, binding_of, spec_of
from dutyfree.client.unenforced import UnenforcedNotice
from dutyfree.contract import SpanListener, Substrate
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.leases.fence import another_loop
from dutyfree.leases.secret import Secret, conceal
from dutyfree.leases.table import Lease, check_labels
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
from dutyfree.model.cache import owned_by
from dutyfree.pool.options import WITHOUT_A_POOL, PoolOptions

if TYPE_CHECKING:
    from dutyfree.choose.decision import Decision
    from dutyfree.client.groups import Group
    from dutyfree.client.host_pool import HostPool
    from dutyfree.client.leasing import Leasing
    from dutyfree.images.recipes.builder import Built
    from dutyfree.images.recipes.progress import Progress
    from dutyfree.images.store import Store
    from dutyfree.substrates.guarded import GuardedSubstrate
    from dutyfree.substrates.options import (
        AutoOptions,
        CellOptions,
        DockerOptions,
        FakeOptions,
        GVisorOptions,
        HostedOptions,
        MicroVMOptions,
        ServerOptions,
        VMOptions,
    )


@overload
def local(
    substrate: Literal["cell"] = ...,
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[CellOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["docker", "docker-gvisor"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[DockerOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["gvisor"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[GVisorOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["microvm"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[MicroVMOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["vm"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[VMOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["hosted"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[HostedOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["fake"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[FakeOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["server"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[ServerOptions],
) -> LocalHost: ...
@overload
def local(
    substrate: Literal["auto"],
    *,
    pool: PoolOptions | None = ...,
    on_span: SpanListener | None = ...,
    **options: Unpack[AutoOptions],
) -> LocalHost: ...
@overload
def local(  # `process`, which has no options, names that other packages have registered, and substrates of your own
    substrate: str | Substrate, *, pool: PoolOptions | None = ..., on_span: SpanListener | None = ...
) -> LocalHost: ...
def local(
    substrate: str | Substrate = "cell",
    *,
    pool: PoolOptions | None = None,
    on_span: SpanListener | None = None,
    **options: Any,
) -> LocalHost:
    """A host for sandboxes on this machine, to be used in `async with`.

    `substrate` is a registered name, with `options` for its constructor, or your own substrate object. "auto" chooses
    the cheapest substrate that works here and isolates strongly enough for `trust` ("trusted", "model", "untrusted",
    "hostile"). It computes the cost from `expected_actions` and `expected_work_s`, by the measurements in the file
    `advice` or by built-in ones. With a `pool`, sandboxes are kept warm and used again. `on_span` is called with every
    span when it ends: those of leases, and those of what the pool does in the background.
    """
    return LocalHost(substrate, pool=pool, on_span=on_span, **options)


class LocalHost(Host):
    """Gives out leases while its `async with` block lasts. At its end it destroys every sandbox.

    Entering raises InvalidRequest for a substrate that is not registered, and SubstrateUnavailable, with a hint, if the
    substrate does not work on this machine.
    """

    def __init__(
        self,
        substrate: str | Substrate = "cell",
        *,
        pool: PoolOptions | None = None,
        on_span: SpanListener | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(substrate, str | Substrate):
            raise wrong("substrate", substrate, "the name of a substrate, or a Substrate")
        if pool is not None and not isinstance(pool, PoolOptions):
            raise wrong("pool", pool, "a PoolOptions", hint="pool=dutyfree.PoolOptions()")
        if on_span is not None:
            function("on_span", on_span)
        if options and not isinstance(substrate, str):
            raise InvalidRequest(f"options {sorted(options)} need a substrate's name, not a substrate")
        self._wanted = substrate
        self._options = options
        self._on_span = on_span
        self._substrate: GuardedSubstrate | None = None
        self._decision: Decision | None = None
        self._has_pool = pool is not None
        self._pool_options = pool if pool is not None else WITHOUT_A_POOL
        self._leasing: Leasing | None = None
        self._billed: Leasing | None = None
        """What `bill` reads: it is kept after the end of the host."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: HostPool | None = None
        self._unenforced = UnenforcedNotice()
        self._group_lock = asyncio.Lock()
        """Groups lease their sandboxes one group after the other. Two groups that each hold some of the pool's last
        sandboxes would wait for each other for ever."""

    async def __aenter__(self) -> Self:
        if self._substrate is not None:
            raise InvalidRequest("this host is open already")
        guarded = await self._open_substrate()
        self._substrate, self._loop = guarded, asyncio.get_running_loop()
        try:
            self._leasing = await self._open_leasing(guarded)
            self._billed = self._leasing
        except BaseException:
            self._substrate = None
            await guarded.close()
            raise
        return self

    async def _open_substrate(self) -> GuardedSubstrate:
        # Loading the registry costs an import of what the chosen substrate needs, and of nothing else.
        from dutyfree.substrates import registry
        from dutyfree.substrates.guarded import GuardedSubstrate

        if self._wanted == "auto":
            from dutyfree.choose import automatic

            guarded, self._decision = await automatic.opened(self._options)
            return guarded
        inner = registry.load(self._wanted, **self._options) if isinstance(self._wanted, str) else self._wanted
        guarded = inner if isinstance(inner, GuardedSubstrate) else GuardedSubstrate(inner)
        try:
            await guarded.open()
        except BaseException:
            # An open that was cancelled may have started processes or created directories: close removes them.
            await guarded.close()
            raise
        return guarded

    async def _open_leasing(self, substrate: GuardedSubstrate) -> Leasing:
        from dutyfree.client.leasing import Leasing

        store = substrate.store if Capability.IMAGES in substrate.capabilities else None
        leasing = Leasing(substrate, self._pool_options, store, self._built, self._on_span, shown=self._has_pool)
        await leasing.open()
        return leasing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._substrate is not None and asyncio.get_running_loop() is not self._loop:
            raise another_loop("a host")
        leasing, self._leasing, self._pool = self._leasing, None, None
        substrate = self._substrate
        try:
            if leasing is not None:
                await leasing.close()
        finally:
            self._substrate = None
            if substrate is not None:
                await substrate.close()

    @property
    def pool(self) -> HostPool:
        """The pool that keeps sandboxes warm. Raises InvalidRequest for a host without one."""
        if not self._has_pool:
            raise InvalidRequest("this host has no pool", hint="dutyfree.local(..., pool=dutyfree.PoolOptions())")
        from dutyfree.client.host_pool import HostPool

        if self._pool is None:
            self._pool = HostPool(self._opened_leasing())
        return self._pool

    @property
    def substrate(self) -> str:
        return self._opened().name

    @property
    def why(self) -> str:
        """Why `"auto"` chose this substrate and passed over each other one; empty if the caller chose it."""
        return self._decision.explanation if self._decision is not None else ""

    @property
    def decision(self) -> Decision | None:
        """The choice by `"auto"`: all costs, and in `passed_over` the reason for each other candidate, by its name."""
        return self._decision

    @property
    def isolation(self) -> Isolation:
        return self._opened().isolation

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._opened().capabilities

    @property
    def has_default_image(self) -> bool:
        """Whether the substrate has an image for leases that name none."""
        return self._opened().has_default_image

    async def build(
        self,
        recipe: Recipe,
        *,
        name: str | None = None,
        on_progress: Progress | None = None,
        rebuild: bool = False,
    ) -> Image:
        if not isinstance(recipe, Recipe):
            raise wrong("recipe", recipe, "a Recipe", hint="dutyfree.load_recipe(path) reads one from a file")
        if name is not None:
            text("name", name)
        if on_progress is not None:
            function("on_progress", on_progress)
        return (await self._built(recipe, name=name, on_progress=on_progress, rebuild=rebuild)).image

    async def fetch(self, name: str, *, on_progress: Progress | None = None) -> Image:
        """The image of this name: from the store or else, if it has a tag, a digest or a slash, from its registry.

        A fetched image gets the name in the store, so that the next lease or fetch needs no network. `lease(name)` does
        the same without progress. Raises ImageNotFound for a name that the store lacks and that is not fetched;
        InvalidRequest for an image that the registry lacks or refuses; SubstrateUnavailable if skopeo is missing;
        InfraFailed or DeadlineExceeded if the registry cannot be reached; Unsupported if the substrate has no images.
        """
        return await self._opened_leasing().images.find(name, on_progress=on_progress)

    async def _built(
        self,
        recipe: Recipe,
        *,
        name: str | None = None,
        on_progress: Progress | None = None,
        rebuild: bool = False,
    ) -> Built:
        from dutyfree.images.recipes import builder, progress  # most leases need no recipe

        report = on_progress or progress.ignore
        async with self._building() as substrate:
            return await builder.build(recipe, substrate, self.store, name=name, on_progress=report, rebuild=rebuild)

    @asynccontextmanager
    async def _building(self) -> AsyncIterator[Substrate]:
        """The substrate that builds recipes: this one, or the one that it names in `builds_with`."""
        from dutyfree.substrates import registry
        from dutyfree.substrates.guarded import GuardedSubstrate

        builds_with = self._opened().builds_with
        if builds_with is None:
            yield self._opened()
            return
        async with GuardedSubstrate(registry.load(builds_with, store=self.store)) as substrate:
            yield substrate

    @property
    def store(self) -> Store:
        """The store of images. Raises Unsupported if the substrate has no images."""
        substrate = self._opened()
        store = substrate.store
        if Capability.IMAGES not in substrate.capabilities or store is None:
            raise Unsupported(f"substrate {substrate.name!r} has no images")
        return store

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
        secrets, secret_files = conceal(secrets), conceal(secret_files)
        leasing = self._opened_leasing()
        if asyncio.get_running_loop() is not self._loop:
            raise another_loop("a host")
        _check_isolation(isolation, self._opened())
        if not isinstance(image, Recipe | Image | str | None):
            raise wrong("image", image, "a Recipe, an Image, the name of an image, or None")
        noted = check_labels(labels)
        egress = network if isinstance(network, Egress) else None
        spec = spec_of(resources, network, writes, mounts, owned_by(owner, caches) if caches else ())
        binding = binding_of(env, secrets, files, secret_files, uploads, workdir, user, egress)
        timeout_s = self._pool_options.timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)
        deadline_s = time.monotonic() + timeout_s
        start = await leasing.image(image, timeout_s=timeout_s)
        if user == IMAGE_USER:
            binding = replace(binding, user=_image_user(start))
        # A registry, a build and the queue share the caller's time. Each must have some, to give its own error.
        wanted = await leasing.find(start, spec, max(0.001, deadline_s - time.monotonic()), for_lease=True)
        leasing.announcements.requested(start, spec)
        left_s = max(0.001, deadline_s - time.monotonic())
        grant = await leasing.pool.acquire(
            wanted, owner=owner, key=key, ttl_s=ttl_s, timeout_s=left_s, binding=binding, labels=noted
        )
        if grant.sandbox.unenforced:
            try:
                self._unenforced.check(grant.sandbox.unenforced, strict=strict)
            except BaseException:  # Unsupported, or a warning that the program's filters make an error
                await leasing.pool.withdraw(grant)
                raise
        return Box(grant, leasing.pool, warns=True)

    def bill(self, *, advice: str | Path | None = None) -> Bill:
        if self._billed is None:
            raise InvalidRequest("the host was never open", hint="use it inside `async with dutyfree.local() as host:`")
        from dutyfree.client.billing import with_others

        return with_others(self._billed.pool.bill(), self._billed.isolation, advice)

    async def get(self, lease_id: str) -> Box:
        pool = self._opened_leasing().pool
        return Box(pool.get(text("lease_id", lease_id)), pool)

    def leases(self) -> list[Lease]:
        return list(self._opened_leasing().pool.leases())

    async def find_leases(self, *, owner: str | None = None, labels: Mapping[str, str] | None = None) -> list[Lease]:
        wanted = check_labels(labels)
        return [each for each in self.leases() if (owner is None or each.owner == owner) and each.has_labels(wanted)]

    async def release(self, lease_id: str) -> None:
        await self._opened_leasing().pool.release_by_id(text("lease_id", lease_id))

    def group(
        self,
        image: Recipe | Image | str | None = None,
        *,
        n: int,
        prepare: Callable[[Box], Awaitable[None]] | None = None,
        at_least: int | None = None,
        **lease: Unpack[LeaseOptions],
    ) -> AbstractAsyncContextManager[Group[Box]]:
        from dutyfree.client import groups

        limit = self._pool_options.sandboxes
        if whole("n", n, least=1) > limit:
            raise InvalidRequest(f"a group of {n} in a pool of {limit} would wait for ever", hint="enlarge the pool")
        return groups.of_host(self, image, n, prepare, at_least, self._group_lock, lease)

    def _opened(self) -> GuardedSubstrate:
        if self._substrate is None:
            raise InvalidRequest("the host is not open", hint="use it inside `async with dutyfree.local() as host:`")
        return self._substrate

    def _opened_leasing(self) -> Leasing:
        self._opened()
        assert self._leasing is not None
        return self._leasing


def watch_ends(host: LocalHost, listener: Callable[[Lease, str], None]) -> None:
    """Call `listener` with each lease of an open host that has ended, and how: for a server, which keeps records.

    Leases then keep no spans. Nobody would read them, and those of leases that last for days would fill its memory.
    """
    pool = host._opened_leasing().pool
    pool.keep_no_spans()
    pool.on_end = lambda grant: listener(grant.lease, grant.fence.how)


def _image_user(image: Recipe | Image) -> User | None:
    """The user that an image names; None, which is root, if it names none. Raises InvalidRequest without an image."""
    if not isinstance(image, Image) or image.reference or image == Image():
        hint = "build the recipe first, or import the image into the store"
        raise InvalidRequest("user='image' needs an image of the store", hint=hint)
    return image.user or None


def _check_isolation(wanted: Isolation | str, substrate: Substrate) -> None:
    """Raise Unsupported if the substrate isolates less than required, InvalidRequest for an unknown isolation."""
    if wanted == "auto":
        return
    labels = {each.label: each for each in Isolation}
    if not isinstance(wanted, Isolation) and wanted not in labels:
        raise InvalidRequest(f"isolation is {wanted!r}; it can be 'auto' or one of {', '.join(labels)}")
    least = labels[wanted] if isinstance(wanted, str) else wanted
    if substrate.isolation < least:
        raise Unsupported(
            f"substrate {substrate.name!r} gives isolation {substrate.isolation.label!r}, not {least.label!r}"
        )
