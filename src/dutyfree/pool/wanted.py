"""The goals of a real pool: a wanted state, its ladder, and the spec, stages and images for each rung."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Image, Recipe, SandboxSpec, Stage
from dutyfree.pool.state import Ladder, State
from dutyfree.threads import in_thread
from dutyfree.values import dataclass

if TYPE_CHECKING:
    from dutyfree.images.store import Store


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wanted state, and what is needed to bring a sandbox into it."""

    ladder: Ladder
    spec: SandboxSpec
    """The spec of a sandbox at the base."""
    stages: tuple[Stage, ...] = ()
    """The stages above the base, one for each rung but the first."""
    images: tuple[Image, ...] = ()
    """The images from which sandboxes can be created, by rung; without layers, only the image of the base."""

    def image_of(self, state: State) -> tuple[int, Image]:
        """The deepest image from which a sandbox for `state` can be created, and its depth."""
        depth = min(len(self.images), state.depth)
        return depth, self.images[depth - 1]

    def made_in(self, state: State) -> State:
        """The state in which a new sandbox is created when `state` is requested; a reset takes it back there."""
        depth = len(self.images)
        return state.cut(depth) if depth < state.depth else state


def plain(spec: SandboxSpec) -> Wanted:
    """The goal of sandboxes that start from an image: a ladder with one rung."""
    check(spec)
    content = spec.image.as_dict() | {"reference": spec.image.reference}
    state = State((_digest({"image": content, **_shape(spec)}),))
    return Wanted(Ladder(("base",), state), spec, images=(spec.image,))


async def of_recipe(recipe: Recipe, spec: SandboxSpec, store: Store | None) -> Wanted:
    """The goal of a recipe, from its base and its inputs as they are now. `spec` names no image.

    Raises InvalidRequest for a missing input, Unsupported for a base that needs a store where there is none.
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
    """Raise InvalidRequest for a spec with an environment: that belongs to one lease, and is bound to it later."""
    if spec.env:
        raise InvalidRequest("sandboxes of a pool have no environment of their own", hint="bind it to the lease")


def _shape(spec: SandboxSpec) -> dict[str, object]:
    """The settings that cannot be changed after a sandbox is created."""
    bounds = {name: getattr(spec.resources, name) for name in spec.resources.__slots__}
    mounts = {"mounts": [[str(each.source), each.target] for each in spec.mounts]} if spec.mounts else {}
    caches = [[each.owner, each.name, each.target, each.max_bytes] for each in spec.caches]
    return {
        "resources": bounds,
        "network": spec.network.value,
        "writes": spec.writes.value,
        "hostname": spec.hostname,
        **mounts,
        **({"caches": caches} if caches else {}),
    }


def _digest(content: dict[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
