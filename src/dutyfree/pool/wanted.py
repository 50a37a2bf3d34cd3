"""The goals of a real pool: the wanted state, the ladder that leads there, and all that is needed to climb it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Image, Recipe, SandboxSpec, Stage
from dutyfree.pool.state import Ladder, State
from dutyfree.threads import in_thread

if TYPE_CHECKING:
    from dutyfree.images.store import Store


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wanted state, and how sandboxes get there."""

    ladder: Ladder
    spec: SandboxSpec
    """The spec of a sandbox at the base."""
    stages: tuple[Stage, ...] = ()
    """The stages to be added to it, one for each rung but the first."""
    images: tuple[Image, ...] = ()
    """The images from which sandboxes can be created, by rung; where there are no layers, the base's alone."""

    def image_of(self, state: State) -> tuple[int, Image]:
        """The deepest image from which a sandbox on its way to `state` can be created, and its depth."""
        depth = min(len(self.images), state.depth)
        return depth, self.images[depth - 1]

    def made_in(self, state: State) -> State:
        """The state in which a new sandbox is created when `state` is asked for; a reset takes it back there."""
        return state.cut(self.image_of(state)[0])


def plain(spec: SandboxSpec) -> Wanted:
    """A ladder with one rung: sandboxes as their image has them."""
    check(spec)
    content = spec.image.as_dict() | {"reference": spec.image.reference}
    state = State((_digest({"image": content, **_shape(spec)}),))
    return Wanted(Ladder(("base",), state), spec, images=(spec.image,))


async def of_recipe(recipe: Recipe, spec: SandboxSpec, store: Store | None) -> Wanted:
    """The ladder of a recipe, as its base and its inputs are at this moment; `spec` names no image.

    Raises InvalidRequest for an input that is not there, Unsupported for a base that takes a store where there is none.
    """
    from dutyfree.images.recipes import bases, digests, inputs

    check(spec)
    if store is None and recipe.base != "host":
        raise Unsupported(f"base {recipe.base!r} needs a substrate that has images", hint="use cells")
    base = await bases.find(recipe.base, store) if store is not None else None
    digest = base.digest if base is not None else digests.base_digest("host", await in_thread(bases.host_identity))
    found = [_digest({"base": digest, **_shape(spec)})]
    for stage in recipe.stages:
        prints = [await in_thread(inputs.fingerprint, Path(given.source)) for given in stage.files]
        digest = digests.stage_digest(digest, stage, prints)
        found.append(digest)
    ladder = Ladder(("base", *(stage.name for stage in recipe.stages)), State(tuple(found)))
    return Wanted(ladder, spec, recipe.stages, (Image(),))


def check(spec: SandboxSpec) -> None:
    """Raise InvalidRequest for a spec with an environment: what belongs to one lease alone is bound to it, late."""
    if spec.env:
        raise InvalidRequest("sandboxes of a pool have no environment of their own", hint="bind it to the lease")


def _shape(spec: SandboxSpec) -> dict[str, object]:
    """What cannot be changed once a sandbox is made."""
    bounds = {name: getattr(spec.resources, name) for name in spec.resources.__slots__}
    return {"resources": bounds, "network": spec.network.value, "writes": spec.writes.value, "hostname": spec.hostname}


def _digest(content: dict[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
