"""`fake` around cells."""

from __future__ import annotations

import contextlib

import pytest

from dutyfree.errors import (
    LinkFailed,
    SubstrateFailed,
    SubstrateUnavailable,
)
from dutyfree.model import Action, Capability, SandboxSpec
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Step

SPEC = SandboxSpec()
TRUE = Action(["true"])


async def test_around_cells_a_reset_fails_and_forks_are_fakes_too() -> None:
    fake = FakeSubstrate(
        "cell", failures=[Failure(Step.RESET, FailureKind.ERROR, {2}), Failure(Step.RUN, FailureKind.DEATH, {1})]
    )
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(fake)
        except SubstrateUnavailable as error:
            pytest.skip(str(error))
        assert {Capability.RESET, Capability.FORK} <= fake.capabilities
        box = await fake.create(SPEC)
        (fork,) = await box.fork(1)
        with pytest.raises(LinkFailed):
            await fork.run(TRUE)
        await box.reset()
        assert (await box.run(TRUE)).ok
        with pytest.raises(SubstrateFailed):
            await box.reset()
        assert not box.alive
