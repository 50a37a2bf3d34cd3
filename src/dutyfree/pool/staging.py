"""Brings sandboxes into states: from layers if there are any, otherwise by running stages inside the sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import SubstrateFailed, Unsupported
from dutyfree.leases.binding import Binding
from dutyfree.model import Capability, Image, Network, Recipe, SandboxSpec
from dutyfree.pool import wanted as goals
from dutyfree.pool.billing import SpanSink
from dutyfree.pool.planner_input import Abilities
from dutyfree.pool.state import State
from dutyfree.pool.wanted import Wanted
from dutyfree.values import dataclass

if TYPE_CHECKING:
    from dutyfree.images.recipes.builder import Built
    from dutyfree.images.store import Store

Build = Callable[[Recipe], Awaitable["Built"]]


@dataclass(frozen=True, slots=True)
class Layers:
    """The store of layers, and the function that builds missing ones."""

    store: Store
    build: Build
    of_stages: bool = True
    """Whether stages become layers, too; otherwise only bases do."""


class Stager:
    """Creates and promotes sandboxes of `substrate`. Without `layers`, all stages are run inside the sandbox."""

    def __init__(self, substrate: Substrate, layers: Layers | None = None) -> None:
        self._substrate = substrate
        self._layers = layers
        self._held = contextlib.ExitStack()
        """Keeps layers from being pruned while the pool may use them."""
        self._held_layers: set[tuple[str, ...]] = set()

    @property
    def name(self) -> str:
        """The name of the substrate."""
        return self._substrate.name

    @property
    def snapshots_hold_memory(self) -> bool:
        """Whether snapshots of the substrate contain the sandbox's memory."""
        return self._substrate.snapshots_hold_memory

    @property
    def abilities(self) -> Abilities:
        """The abilities of the substrate, for the planner."""
        can_reset = Capability.RESET in self._substrate.capabilities
        return Abilities(reset=can_reset, images=self._layers is not None and self._layers.of_stages)

    async def wanted(self, what: Recipe | Image, spec: SandboxSpec) -> Wanted:
        """The goal of sandboxes for a recipe or image. With layers, a recipe is built now if it was not built before.

        Raises BuildFailed and InvalidRequest for a recipe that does not build, Unsupported, CapacityError, InfraFailed.
        """
        if isinstance(what, Image):
            return goals.plain(replace(spec, image=what))
        from dutyfree.threads import in_thread  # most leases need no recipe

        layers = self._layers
        if layers is None or not layers.of_stages:
            _check_network(what, spec)
        if layers is None:
            return await goals.of_recipe(what, spec, None)
        found = await goals.of_recipe(what, spec, layers.store)
        images = [(await layers.build(replace(what, stages=()))).image]
        if layers.of_stages and what.stages:
            built = await layers.build(what)
            between = [await in_thread(layers.store.recall, stage.digest) for stage in built.stages[1:-1]]
            if None in between:
                raise SubstrateFailed("a layer was removed from the store before the pool could use it")
            images += [image for image in between if image is not None] + [built.image]
        for image in images:
            if image.layers not in self._held_layers:
                self._held_layers.add(image.layers)
                await in_thread(self._held.enter_context, layers.store.hold(image.layers))
        return replace(found, images=tuple(images))

    async def create(self, wanted: Wanted, state: State, on_span: SpanListener | None = None) -> Sandbox:
        """A new sandbox in the state `wanted.made_in(state)`. Raises as `Substrate.create`."""
        _, image = wanted.image_of(state)
        spec = wanted.spec if wanted.spec.image is image else replace(wanted.spec, image=image)
        return await self._substrate.create(spec, on_span)

    async def promote(self, sandbox: Sandbox, wanted: Wanted, have: State, to: State, spans: SpanSink) -> None:
        """Run the stages between two states inside. Raises BuildFailed for a line that fails, and as `Sandbox.run`."""
        if have != to:
            from dutyfree.images.recipes.readiness import make_ready

            with spans.setup(sandbox.id):
                stages = wanted.stages
                await make_ready(sandbox, stages[have.depth - 1 : to.depth - 1], after=stages[: have.depth - 1])

    def bound(self, wanted: Wanted, made_in: State, state: State, binding: Binding) -> Binding:
        """The binding of a lease, with the environment of the stages that are not part of the sandbox's image."""
        if made_in == state:
            return binding
        stages = wanted.stages[made_in.depth - 1 : state.depth - 1]
        env = {name: value for stage in stages for name, value in stage.env.items()}
        return replace(binding, env={**env, **binding.env}) if env else binding

    async def close(self) -> None:
        """Allow the store to prune the layers again."""
        self._held.close()


def _check_network(recipe: Recipe, spec: SandboxSpec) -> None:
    """Raise Unsupported if a stage needs a network that its sandbox will not have."""
    for stage in recipe.stages:
        if stage.network is Network.HOST and spec.network is not Network.HOST:
            hint = 'a layer can be built with a network and used without; here, lease with network="host"'
            raise Unsupported(f"stage {stage.name!r} needs a network, and sandboxes here have none", hint=hint)
