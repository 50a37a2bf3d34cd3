"""How a sandbox's body ends: once, whoever asks and however often."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Image, SandboxSpec
from dutyfree.substrates.gvisor.body import GVisorBody


class Site(SimpleNamespace):
    """Is cleared when it is told to, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(stack=SimpleNamespace(image=Image()), spec=SandboxSpec())
        self.go_on = asyncio.Event()
        self.clearings = 0
        self.failures = failures

    async def clear(self, _pid: int | None = None) -> None:
        self.clearings += 1
        await self.go_on.wait()
        if self.clearings <= self.failures:
            raise SubstrateFailed("not yet")


def body_at(site: Any) -> GVisorBody:
    channel: Any = SimpleNamespace()
    return GVisorBody(site, channel, 1, ())


async def test_an_end_that_was_cancelled_goes_on_and_is_not_begun_again() -> None:
    site = Site()
    body = body_at(site)
    first = asyncio.create_task(body.end())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    others = [asyncio.create_task(body.end()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in others)
    site.go_on.set()
    await asyncio.gather(*others, body.end())
    assert site.clearings == 1


async def test_an_end_that_failed_is_tried_again() -> None:
    site = Site(failures=1)
    site.go_on.set()
    body = body_at(site)
    with pytest.raises(SubstrateFailed):
        await body.end()
    await body.end()
    assert site.clearings == 2
