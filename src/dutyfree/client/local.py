"""Sandboxes on this machine, embedded in this process: no daemon, nothing to install first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dutyfree.client.box import Box
from dutyfree.contract import SpanListener, Substrate
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Capability, Image, Isolation, Network, Recipe, Resources, SandboxSpec, Upper
from dutyfree.pool.secret import Secret, conceal, conceal_lease

if TYPE_CHECKING:
    from dutyfree.client.groups import Group, Rollout
    from dutyfree.client.host_pool import HostPool
    from dutyfree.images.recipes.builder import Built
    from dutyfree.images.recipes.progress import Progress
    from dutyfree.images.store import Store
    from dutyfree.pool.isolation import Decision
    from dutyfree.pool.options import PoolOptions
    from dutyfree.substrates.guarded import GuardedSubstrate

Choice = TypeVar("Choice", Network, Upper)
Task = TypeVar("Task")
Value = TypeVar("Value")


def local(
    substrate: str | Substrate = "cell",
    *,
    pool: PoolOptions | None = None,
    on_span: SpanListener | None = None,
    **options: Any,
) -> LocalHost:
    """A host for sandboxes on this machine, to be used in `async with`.

    `substrate` is a name that the registry knows, with `options` for its constructor, or a substrate of your own.
    "auto" takes the cheapest that works here and whose wall is strong enough for `trust` ("trusted", "model",
    "untrusted", "hostile"), `expected_actions` and `expected_work_s`, by `advice` of your measurements or ours. With
    a `pool`, sandboxes are kept warm and used again. `on_span` is told of every span of every sandbox as it ends.
    """
    return LocalHost(substrate, pool=pool, on_span=on_span, **options)


class LocalHost:
    """Gives out leases while its `async with` block lasts; at its end every sandbox is destroyed.

    Entering raises InvalidRequest for a substrate that nobody registered, and SubstrateUnavailable, with a hint, where
    the substrate cannot work on this machine.
    """

    def __init__(
        self,
        substrate: str | Substrate = "cell",
        *,
        pool: PoolOptions | None = None,
        on_span: SpanListener | None = None,
        **options: Any,
    ) -> None:
        if options and not isinstance(substrate, str):
            raise InvalidRequest(f"options {sorted(options)} need a substrate's name, not a substrate")
        self._wanted = substrate
        self._options = options
        self._on_span = on_span
        self._substrate: GuardedSubstrate | None = None
        self._decision: Decision | None = None
        self._pool_options = pool
        self._pool: HostPool | None = None
        self._turn = asyncio.Lock()
        """Groups get their sandboxes one after the other: two that each have a part would wait for each other."""

    async def __aenter__(self) -> Self:
        if self._substrate is not None:
            raise InvalidRequest("this host is open already")
        guarded = await self._open_substrate()
        self._substrate = guarded
        if self._pool_options is not None:
            try:
                await self._open_pool(self._pool_options)
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
            from dutyfree.client import choosing

            guarded, self._decision = await choosing.opened(self._options)
            return guarded
        inner = registry.load(self._wanted, **self._options) if isinstance(self._wanted, str) else self._wanted
        guarded = inner if isinstance(inner, GuardedSubstrate) else GuardedSubstrate(inner)
        try:
            await guarded.open()
        except BaseException:
            # Also an open that was cancelled half-way must leave nothing.
            await guarded.close()
            raise
        return guarded

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pool, self._pool = self._pool, None
        substrate = self._substrate
        try:
            if pool is not None:
                await pool.close()
        finally:
            self._substrate = None
            if substrate is not None:
                await substrate.close()

    async def _open_pool(self, options: PoolOptions) -> None:
        from dutyfree.client.host_pool import HostPool  # most hosts have none

        substrate = self._opened()
        store = substrate.store if Capability.IMAGES in substrate.capabilities else None
        self._pool = HostPool(substrate, options, store, self._built, self._on_span)
        await self._pool.open()

    @property
    def pool(self) -> HostPool:
        """The pool that keeps sandboxes warm. Raises InvalidRequest for a host without one."""
        if self._pool is None:
            raise InvalidRequest("this host has no pool", hint="dutyfree.local(..., pool=dutyfree.PoolOptions())")
        return self._pool

    @property
    def substrate(self) -> str:
        """The name of the substrate that makes this host's sandboxes."""
        return self._opened().name

    @property
    def why(self) -> str:
        """Why this substrate, in a sentence, on a host that chose it by itself (`"auto"`); otherwise empty."""
        return self._decision.why if self._decision is not None else ""

    @property
    def isolation(self) -> Isolation:
        """The wall that its sandboxes have."""
        return self._opened().isolation

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes can do here and now."""
        return self._opened().capabilities

    @property
    def has_default_image(self) -> bool:
        """Whether a lease without an image has something to start from."""
        return self._opened().has_default_image

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
        return (await self._built(recipe, name=name, on_progress=on_progress, rebuild=rebuild)).image

    async def _built(
        self,
        recipe: Recipe,
        *,
        name: str | None = None,
        on_progress: Progress | None = None,
        rebuild: bool = False,
    ) -> Built:
        from dutyfree.images.recipes import builder, progress  # most leases need no recipe

        tell = on_progress or progress.ignore
        async with self._building() as substrate:
            return await builder.build(recipe, substrate, self.store, name=name, on_progress=tell, rebuild=rebuild)

    @asynccontextmanager
    async def _building(self) -> AsyncIterator[Substrate]:
        """What runs the lines of recipes: the substrate itself, or the one that it leaves this to."""
        from dutyfree.substrates import registry

        builds_with = self._opened().builds_with
        if builds_with is None:
            yield self._opened()
            return
        async with registry.load(builds_with, store=self.store) as substrate:
            yield substrate

    @property
    def store(self) -> Store:
        """Where images are kept. Raises Unsupported where the substrate has none."""
        substrate = self._opened()
        store = substrate.store
        if Capability.IMAGES not in substrate.capabilities or store is None:
            raise Unsupported(f"substrate {substrate.name!r} has no images")
        return store

    @asynccontextmanager
    async def lease(
        self,
        image: Recipe | Image | str | None = None,
        *,
        resources: Resources | None = None,
        network: Network | str = Network.NONE,
        upper: Upper | str = Upper.TMPFS,
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
        """A fresh sandbox for the length of the block.

        `image` is what it starts from: a recipe (built if need be), an image, or the name of one in the store; without
        it, the host's own root. `isolation` is the weakest wall that will do; "auto" takes what the substrate gives.

        On a host with a pool, the sandbox may have been made, and used, before: nothing of that is in it. `secrets` are
        further entries of the environment, which show nowhere; `files` and `secret_files` (below /dev/shm) are put in
        place. `owner` is whose turn is counted, `timeout_s` how long to wait, `ttl_s` how long the lease lasts; the
        same `key` gives the same lease.

        Raises InvalidRequest for a value that does not exist, Unsupported for a wall that this substrate lacks,
        CapacityError when the machine is full, BuildFailed for a recipe that does, and SubstrateFailed, GuestMisbehaved
        or DeadlineExceeded when creation went wrong.
        """
        secrets, secret_files = conceal(secrets), conceal(secret_files)
        substrate = self._opened()
        _check_isolation(isolation, substrate)
        spec = SandboxSpec(
            resources=resources if resources is not None else Resources(),
            network=_choice(Network, network, "network"),
            upper=_choice(Upper, upper, "upper"),
            env={} if self._pool else env or {},
        )
        bound = {"secrets": secrets, "files": files, "secret_files": secret_files}
        asked: dict[str, Any] = {"owner": owner, "key": key, "timeout_s": timeout_s, "ttl_s": ttl_s}
        if self._pool is not None:
            what = image if isinstance(image, Recipe) else await self._image(image)
            async with self._pool.leased(what, spec, {"env": env, **bound}, **asked) as box:
                yield box
            return
        if any((bound | asked).values()):
            names = ", ".join(name for name, value in (bound | asked).items() if value)
            raise InvalidRequest(f"{names}: only on a host with a pool", hint="dutyfree.local(..., pool=PoolOptions())")
        box = Box(await substrate.create(replace(spec, image=await self._image(image)), self._on_span))
        try:
            yield box
        finally:
            await box.destroy()

    def group(
        self,
        image: Recipe | Image | str | None = None,
        *,
        n: int,
        prepare: Callable[[Box], Awaitable[None]] | None = None,
        at_least: int | None = None,
        **lease: Any,
    ) -> AbstractAsyncContextManager[Group[Box]]:
        """`n` sandboxes alike for the length of the block, as the rollouts of one prompt need them.

        `prepare` is done once, in one of them, which the others are then forked from; where sandboxes cannot be forked,
        in each. `lease` is what `lease` takes. If some cannot be had, `failures` of what is given says why; fewer than
        `at_least` (all, unless it is given) raise as `lease` does.
        """
        from dutyfree.client import groups

        lease = conceal_lease(lease)
        _check_shared(lease)
        if self._pool is not None and n > (limit := self._pool.status().limit):
            raise InvalidRequest(f"a group of {n} in a pool of {limit} would wait for ever", hint="enlarge the pool")
        forks = Capability.FORK in self._opened().capabilities
        return groups.group(
            lambda: self.lease(image, **lease), n, prepare=prepare, at_least=at_least, forks=forks, turn=self._turn
        )

    async def map(
        self,
        work: Callable[[Box, Task], Awaitable[Value]],
        tasks: Iterable[Task],
        *,
        image: Callable[[Task], Recipe | Image | str | None] | Recipe | Image | str | None = None,
        concurrency: int = 64,
        retries: int = 1,
        on_progress: Callable[[int, int], Any] | None = None,
        **lease: Any,
    ) -> list[Rollout[Task, Value]]:
        """`work(box, task)` for each task, in a sandbox of its own, `concurrency` at a time; results as tasks came.

        `image` is what sandboxes start from, or says it for each task. A rollout that the machinery failed, or for
        which there was no room, is begun anew in a new sandbox up to `retries` times, and has an error in the end, not
        a value. What `work` itself raises, and is not an error of Dutyfree's, ends everything and is raised.
        """
        from dutyfree.client import groups

        lease = conceal_lease(lease)
        _check_shared(lease)

        def leased(task: Task) -> AbstractAsyncContextManager[Box]:
            return self.lease(image(task) if callable(image) else image, **lease)

        return await groups.roll_out(
            tasks, work, leased, concurrency=concurrency, retries=retries, on_progress=on_progress
        )

    async def _image(self, wanted: Recipe | Image | str | None) -> Image:
        if isinstance(wanted, Recipe):
            return await self.build(wanted)
        if isinstance(wanted, str):
            return self._opened().named_image(wanted)
        return wanted if wanted is not None else Image()

    def _opened(self) -> GuardedSubstrate:
        if self._substrate is None:
            raise InvalidRequest("the host is not open", hint="use it inside `async with dutyfree.local() as host:`")
        return self._substrate


def _check_shared(lease: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a key: it stands for one lease, not for one of several."""
    if lease.get("key") is not None:
        raise InvalidRequest("a key stands for one lease", hint="use it with `lease`")


def _choice(kind: type[Choice], value: str, name: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{name} is {value!r}; it can be {', '.join(repr(str(each)) for each in kind)}") from None


def _check_isolation(wanted: Isolation | str, substrate: Substrate) -> None:
    """Raise unless the substrate's wall is at least as strong as the one that is wanted."""
    if wanted == "auto":
        return
    labels = {each.label: each for each in Isolation}
    if isinstance(wanted, str) and wanted not in labels:
        raise InvalidRequest(f"isolation is {wanted!r}; it can be 'auto' or one of {', '.join(labels)}")
    least = labels[wanted] if isinstance(wanted, str) else wanted
    if substrate.isolation < least:
        raise Unsupported(
            f"substrate {substrate.name!r} gives isolation {substrate.isolation.label!r}, not {least.label!r}"
        )
