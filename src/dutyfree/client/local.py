"""Sandboxes on this machine, embedded in this process: no daemon, nothing to install first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from dutyfree.client.box import Box
from dutyfree.contract import SpanListener, Substrate
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Capability, Image, Isolation, Network, Recipe, Resources, SandboxSpec, Upper

if TYPE_CHECKING:
    from dutyfree.images.recipes.progress import Progress
    from dutyfree.images.store import Store
    from dutyfree.substrates.guarded import GuardedSubstrate

Choice = TypeVar("Choice", Network, Upper)


def local(substrate: str | Substrate = "cell", *, on_span: SpanListener | None = None, **options: Any) -> LocalHost:
    """A host for sandboxes on this machine, to be used in `async with`.

    `substrate` is a name that the registry knows, with `options` for its constructor, or a substrate of your own.
    `on_span` is told of every span of every sandbox as it ends.
    """
    return LocalHost(substrate, on_span=on_span, **options)


class LocalHost:
    """Gives out leases while its `async with` block lasts; at its end every sandbox is destroyed.

    Entering raises InvalidRequest for a substrate that nobody registered, and SubstrateUnavailable, with a hint, where
    the substrate cannot work on this machine.
    """

    def __init__(
        self, substrate: str | Substrate = "cell", *, on_span: SpanListener | None = None, **options: Any
    ) -> None:
        if options and not isinstance(substrate, str):
            raise InvalidRequest(f"options {sorted(options)} need a substrate's name, not a substrate")
        self._wanted = substrate
        self._options = options
        self._on_span = on_span
        self._substrate: GuardedSubstrate | None = None

    async def __aenter__(self) -> Self:
        # Loading the registry costs an import of what the chosen substrate needs, and of nothing else.
        from dutyfree.substrates import registry
        from dutyfree.substrates.guarded import GuardedSubstrate

        if self._substrate is not None:
            raise InvalidRequest("this host is open already")
        inner = registry.load(self._wanted, **self._options) if isinstance(self._wanted, str) else self._wanted
        guarded = inner if isinstance(inner, GuardedSubstrate) else GuardedSubstrate(inner)
        try:
            await guarded.open()
        except BaseException:
            # Also an open that was cancelled half-way must leave nothing.
            await guarded.close()
            raise
        self._substrate = guarded
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        substrate, self._substrate = self._substrate, None
        if substrate is not None:
            await substrate.close()

    @property
    def substrate(self) -> str:
        """The name of the substrate that makes this host's sandboxes."""
        return self._opened().name

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
        from dutyfree.images.recipes import builder, progress  # most leases need no recipe

        tell = on_progress or progress.ignore
        async with self._building() as substrate:
            built = await builder.build(recipe, substrate, self.store, name=name, on_progress=tell, rebuild=rebuild)
        return built.image

    @asynccontextmanager
    async def _building(self) -> AsyncIterator[Substrate]:
        """What runs the lines of recipes: the substrate itself, or the one that it leaves this to."""
        from dutyfree.substrates import registry

        builds_with = getattr(self._opened().inner, "builds_with", None)
        if builds_with is None:
            yield self._opened()
            return
        async with registry.load(builds_with, store=self.store) as substrate:
            yield substrate

    @property
    def store(self) -> Store:
        """Where images are kept. Raises Unsupported where the substrate has none."""
        substrate = self._opened()
        store = getattr(substrate.inner, "store", None)
        if Capability.IMAGES not in substrate.capabilities or store is None:
            raise Unsupported(f"substrate {substrate.name!r} has no images")
        return cast("Store", store)

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
    ) -> AsyncIterator[Box]:
        """A fresh sandbox for the length of the block.

        `image` is what it starts from: a recipe (built if need be), an image, or the name of one in the store; without
        it, the host's own root. `isolation` is the weakest wall that will do; "auto" takes what the substrate gives.

        Raises InvalidRequest for a value that does not exist, Unsupported for a wall that this substrate lacks,
        CapacityError when the machine is full, BuildFailed for a recipe that does, and SubstrateFailed, GuestMisbehaved
        or DeadlineExceeded when creation went wrong.
        """
        substrate = self._opened()
        _check_isolation(isolation, substrate)
        spec = SandboxSpec(
            resources=resources if resources is not None else Resources(),
            network=_choice(Network, network, "network"),
            upper=_choice(Upper, upper, "upper"),
            env=env or {},
            image=await self._image(image),
        )
        box = Box(await substrate.create(spec, self._on_span))
        try:
            yield box
        finally:
            await box.destroy()

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
