"""The substrate: it creates sandboxes, reports spans, and closes all sandboxes that are alive."""

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
from dutyfree.substrates.engine.programs import wait_for_programs
from dutyfree.substrates.engine.sandbox import EngineSandbox

DEFAULT_IMAGE_VARIABLE = "DUTYFREE_IMAGE"


class EngineSubstrate(Substrate):
    """Subclasses make bodies. `path` says how actions get into them."""

    builds_with = "cell"
    """The substrate that runs the lines of recipes: one image serves all engines."""
    default_image: str | None = None
    """The name of the image that sandboxes start from if neither the spec nor the options name one."""

    def __init__(
        self,
        *,
        path: ActionPath | str = ActionPath.GUEST,
        image: Image | str | None = None,
        store: Store | str | Path | None = None,
    ) -> None:
        """`image`: the default image or its name, for specs that name none; without it, DUTYFREE_IMAGE names it.

        `store`: where images are.
        """
        try:
            self.path = ActionPath(path)
        except ValueError:
            hint = f"there are: {', '.join(ActionPath)}"
            raise InvalidRequest(f"there is no action path {path!r:.80}", hint=hint) from None
        self._store = store if isinstance(store, Store) else Store(None if store is None else Path(store))
        self._image = image
        self._alive: set[Sandbox] = set()

    @abstractmethod
    async def make_body(self, spec: SandboxSpec, marks: Marks) -> Body:
        """A new body for `spec`, after the handshake. A failed creation leaves nothing. Raises as `create` does."""

    @abstractmethod
    async def let_go(self) -> None:
        """Disconnect from the engine; no sandbox is alive any more. Idempotent."""

    @property
    def store(self) -> Store:
        return self._store

    @property
    def has_default_image(self) -> bool:
        return bool(self._image or os.environ.get(DEFAULT_IMAGE_VARIABLE) or self.default_image)

    def named_image(self, name: str) -> Image:
        return self.store.find(name).image

    def image_for(self, spec: SandboxSpec) -> Image:
        """The image that a sandbox of this spec starts from. Raises InvalidRequest where none is named."""
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

    def forget(self, sandbox: Sandbox) -> None:
        """Remove a sandbox that was destroyed completely from those that are alive."""
        self._alive.discard(sandbox)

    async def close(self) -> None:
        outcomes: list[BaseException | None] = []
        while self._alive and not any(outcomes):  # creations under way may add some
            outcomes += await asyncio.gather(*(each.destroy() for each in list(self._alive)), return_exceptions=True)
        await self.let_go()
        await wait_for_programs()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
