"""A slow cloud: who waits, who is told what, and what is left of what came too late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dutyfree.errors import DeadlineExceeded, InvalidRequest, SubstrateFailed
from dutyfree.substrates.vm import calls as calls_module
from dutyfree.substrates.vm.calls import Calls


class Slow:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(30)
        return "done"


@pytest.fixture
def slow() -> Iterator[Slow]:
    work = Slow()
    yield work
    work.may_end.set()


@pytest.fixture
def calls() -> Calls:
    return Calls(lambda text: text.replace("key", "***"))


async def begun(work: Slow) -> None:
    assert await asyncio.to_thread(work.begun.wait, 5)


async def test_a_call_that_waits_for_its_turn_is_not_late(
    calls: Calls, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "CALL_TIMEOUT_S", 0.3)
    with pytest.raises(DeadlineExceeded, match="did not answer"):
        await calls.call(slow)
    waiting = asyncio.create_task(calls.call(lambda: "second"))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    slow.may_end.set()
    assert await asyncio.wait_for(waiting, 5) == "second"


async def test_nothing_is_begun_by_who_is_cancelled_before_its_turn(calls: Calls, slow: Slow) -> None:
    first = asyncio.create_task(calls.call(slow))
    await begun(slow)
    ran: list[int] = []
    queued = asyncio.create_task(calls.call(lambda: ran.append(1)))
    await asyncio.sleep(0.05)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    slow.may_end.set()
    assert await first == "done"
    assert await calls.call(lambda: "next") == "next"
    assert not ran


async def test_calls_that_wait_take_no_thread(calls: Calls, slow: Slow) -> None:
    first = asyncio.create_task(calls.call(slow))
    await begun(slow)
    queued = [asyncio.create_task(calls.call(time.monotonic)) for _ in range(100)]
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 5) == "free"
    slow.may_end.set()
    await asyncio.gather(first, *queued)


async def test_what_comes_late_is_dealt_with_before_all_is_settled(
    calls: Calls, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "CALL_TIMEOUT_S", 0.1)
    seen: list[str] = []

    async def late(result: str) -> None:
        await calls.call(lambda: seen.append(result))

    with pytest.raises(DeadlineExceeded):
        await calls.call(slow, late=late)
    with pytest.raises(DeadlineExceeded):
        await calls.settle(within_s=0.1)
    slow.may_end.set()
    await calls.settle(within_s=5)
    assert seen == ["done"]


async def test_what_is_cancelled_while_it_runs_is_dealt_with_first(calls: Calls, slow: Slow) -> None:
    seen: list[str] = []

    async def late(result: str) -> None:
        seen.append(result)

    calling = asyncio.create_task(calls.call(slow, late=late))
    await begun(slow)
    calling.cancel()
    await asyncio.sleep(0.05)
    slow.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert seen == ["done"]


async def test_a_drivers_error_is_told_without_its_secrets(calls: Calls) -> None:
    def refuse() -> Any:
        raise ConnectionError("https://cloud/?token=key" + "." * 280 + "key")

    with pytest.raises(SubstrateFailed, match=r"ConnectionError: https://cloud/\?token=\*\*\*") as caught:
        await calls.call(refuse)
    assert "key" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(InvalidRequest, match="mine"):
        await calls.call(lambda: (_ for _ in ()).throw(InvalidRequest("mine")))
