"""A substrate that claims success without doing the work: what no failure of `fake` does."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from dutyfree.contract import ActionStream, Sandbox, SpanListener
from dutyfree.model import Action, Observation, SandboxSpec
from dutyfree.substrates.fake import FakeSandbox, FakeSubstrate

Lie = Literal["run", "stream", "destroy"]
NOTHING = Action(["true"])


class LyingSubstrate(FakeSubstrate):
    """Lies about calls of one kind: about those whose numbers are in `calls`, or about all."""

    def __init__(self, lie: Lie, calls: Container[int] | None = None) -> None:
        super().__init__()
        self._lie = lie
        self._lied_calls = calls
        self._seen = 0

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)
        sandbox.__class__ = LyingSandbox
        assert isinstance(sandbox, LyingSandbox)
        sandbox.substrate = self
        return sandbox

    def lies(self, lie: Lie) -> bool:
        """Whether the next call of this kind is a lie."""
        if lie != self._lie:
            return False
        self._seen += 1
        return self._lied_calls is None or self._seen in self._lied_calls


class LyingSandbox(FakeSandbox):
    """Gives an exit code 0 for a command that did not run; says that it was destroyed, and lives on."""

    substrate: LyingSubstrate

    async def run(self, action: Action) -> Observation:
        return await super().run(NOTHING if self.substrate.lies("run") else action)

    def stream(self, action: Action) -> ActionStream:
        return super().stream(NOTHING if self.substrate.lies("stream") else action)

    async def destroy(self) -> None:
        if not self.alive or not self.substrate.lies("destroy"):
            await super().destroy()
