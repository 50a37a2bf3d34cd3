"""The substrate's side: creations with their spans, who is alive, and the end of them all."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import InvalidRequest
from dutyfree.images.store import Store
from dutyfree.model import ActionPath, Image, SandboxSpec
from dutyfree.substrates.engine.body import Body, Marks
from dutyfree.substrates.engine.programs import seen_off
from dutyfree.substrates.engine.sandbox import EngineSandbox

DEFAULT_IMAGE_VARIABLE = "DUTYFREE_IMAGE"


class EngineSubstrate(Substrate):
    """Subclasses make bodies. `path` says how actions get into them."""

    builds_with = "cell"
    """The substrate that runs the lines of recipes: an image is the same whatever runs it."""
    default_image: str | None = None
    """The name of what sandboxes start from where nothing else says."""

    def __init__(
        self,
        *,
        path: ActionPath | str = ActionPath.GUEST,
        image: Image | str | None = None,
        store: Store | str | Path | None = None,
    ) -> None:
        """`image`: what sandboxes start from that name none, or its name; otherwise DUTYFREE_IMAGE names it.

        `store`: where images are.
        """
        try:
            self.path = ActionPath(path)
        except ValueError:
            hint = f"there are: {', '.join(ActionPath)}"
            raise InvalidRequest(f"there is no action path {path!r:.80}", hint=hint) from None
        self._store = store if isinstance(store, Store) else Store(None if store is None else Path(store))
        self._image = image
        self._alive: set[EngineSandbox] = set()

    @abstractmethod
    async def make_body(self, spec: SandboxSpec, marks: Marks) -> Body:
        """A new body for `spec`, greeted. Nothing is left of one that could not be made. Raises as `create` does."""

    @abstractmethod
    async def let_go(self) -> None:
        """Let go of the engine; no sandbox is alive any more. Idempotent."""

    @property
    def store(self) -> Store:
        return self._store

    @property
    def has_default_image(self) -> bool:
        return bool(self._image or os.environ.get(DEFAULT_IMAGE_VARIABLE) or self.default_image)

    def named_image(self, name: str) -> Image:
        return self.store.find(name).image

    def image_for(self, spec: SandboxSpec) -> Image:
        """What a sandbox of this spec starts from. Raises InvalidRequest where nothing says."""
        if spec.image.layers or spec.image.reference:
            return spec.image
        wanted = self._image or os.environ.get(DEFAULT_IMAGE_VARIABLE) or self.default_image
        if wanted is None:
            raise InvalidRequest(
                f"substrate {self.name!r} does not start from the host's own root: it needs an image",
                hint=f"name one (--image), or let {DEFAULT_IMAGE_VARIABLE} do so; `dutyfree image build` makes them",
            )
        image = self.named_image(wanted) if isinstance(wanted, str) else wanted
        cwd = image.cwd if spec.image.cwd == Image().cwd else spec.image.cwd
        return replace(image, env={**image.env, **spec.image.env}, cwd=cwd)

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        self.check(spec)
        marks = Marks()
        body = await self.make_body(spec, marks)
        sandbox = EngineSandbox(self, body, spec, on_span)
        self._alive.add(sandbox)
        if on_span is not None:
            for span in marks.spans(sandbox.id):
                on_span(span)
        return sandbox

    def forget(self, sandbox: EngineSandbox) -> None:
        """A sandbox has been given back completely."""
        self._alive.discard(sandbox)

    async def close(self) -> None:
        outcomes: list[BaseException | None] = []
        while self._alive and not any(outcomes):  # creations under way may add some
            outcomes += await asyncio.gather(*(each.destroy() for each in list(self._alive)), return_exceptions=True)
        await self.let_go()
        await seen_off()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
