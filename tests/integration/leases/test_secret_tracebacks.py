"""Tools that report errors with the locals of every frame must not report a lease's secrets."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType

import pytest

import dutyfree
import dutyfree.sync
from dutyfree.pool.options import PoolOptions
from dutyfree.substrates.cell import CellSubstrate

HUSH = "hush-0123456789-hush"
HUSH_FILE = "hush-9876543210-hush"
SECRET = "hush-"
BOUND: dict[str, object] = {"secrets": {"TOKEN": HUSH}, "secret_files": {"/dev/shm/token": HUSH_FILE.encode()}}


def bound(substrate: str) -> dict[str, object]:
    """What a lease can be given there: processes share /dev/shm, so they get no secret files."""
    return BOUND if substrate == "cell" else {"secrets": BOUND["secrets"]}


def frames(trace: TracebackType | None) -> list[tuple[str, str, object]]:
    """Function, name and value of each local of each frame that is not this file's."""
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__:
            where = f"{Path(code.co_filename).name}:{code.co_name}"
            found += [(where, name, value) for name, value in trace.tb_frame.f_locals.items()]
        trace = trace.tb_next
    return found


def leaves(value: object, depth: int = 0) -> list[object]:
    """The value and, as pretty printers do, what is in it."""
    found = [value]
    if depth < 4 and isinstance(value, Mapping):
        found += [leaf for pair in value.items() for each in pair for leaf in leaves(each, depth + 1)]
    elif depth < 4 and isinstance(value, list | tuple | set | frozenset):
        found += [leaf for each in value for leaf in leaves(each, depth + 1)]
    return found


def leaks(error: BaseException) -> list[str]:
    """Where a report of the error would show a secret."""
    found, seen, left = [], set(), [error]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        left += [other for other in (each.__cause__, each.__context__) if other is not None]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else []
        if SECRET in "".join(traceback.format_exception(each)) + repr(each.__dict__) + repr(each.args):
            found.append(f"the text of {type(each).__name__}")
        for where, name, value in frames(each.__traceback__):
            found += [f"{where} {name}" for leaf in leaves(value) if SECRET in repr(leaf)]
    return found


@pytest.fixture(params=["cell", "process"])
def substrate(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def host(substrate: str) -> AsyncIterator[dutyfree.LocalHost]:
    async with dutyfree.local(substrate, pool=PoolOptions(sandboxes=2)) as host:
        yield host


Fails = Callable[[dutyfree.Box], Awaitable[object]]


async def user_error(box: dutyfree.Box) -> None:
    raise LookupError("of the caller's own")


FAILURES: dict[str, Fails] = {
    "the caller": user_error,
    "a working directory that is not there": lambda box: box.run("true", cwd="/nowhere"),
    "text that is none": lambda box: box.run("true", env={"BROKEN": "\ud800"}),
    "an environment entry that cannot be": lambda box: box.run("true", env={"A": "\0"}),
    "a command that is too long": lambda box: box.run("x" * 2_000_000),
    "a file": lambda box: box.files.read("/nowhere"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_within_a_lease(host: dutyfree.LocalHost, substrate: str, failure: str) -> None:
    async def fail() -> None:
        async with host.lease(**bound(substrate)) as box:  # type: ignore[arg-type]
            if substrate == "cell":
                assert (await box.run('printf %s "$TOKEN"; cat /dev/shm/token')).text == HUSH + HUSH_FILE
            await FAILURES[failure](box)

    with pytest.raises((dutyfree.DutyfreeError, LookupError)) as caught:
        await fail()
    assert leaks(caught.value) == []


async def test_a_sandbox_that_dies_under_an_action() -> None:
    cells = CellSubstrate()

    async def fail(host: dutyfree.LocalHost) -> None:
        async with host.lease(**BOUND) as box:  # type: ignore[arg-type]
            async with box.session() as session:
                await session.run("true")
            (inner,) = cells._alive
            os.kill(inner.pid, signal.SIGKILL)
            await box.run("sleep 10")

    async with dutyfree.local(cells, pool=PoolOptions(sandboxes=1)) as host:
        with pytest.raises(dutyfree.InfraFailed) as caught:
            await fail(host)
    assert leaks(caught.value) == []


BINDINGS: dict[str, dict[str, object]] = {
    "text that is none": {"secrets": {"TOKEN": f"{HUSH}\ud800"}},
    "file that is no text": {"secret_files": {"/dev/shm/token": f"{HUSH}\ud800"}},
    "bytes that are no text": {"secrets": {"TOKEN": dutyfree.Secret(HUSH.encode() + b"\xff")}},
    "an entry with a zero": {"secrets": {"TOKEN": f"{HUSH}\0", "OTHER": HUSH}},
    "a name that cannot be": {"secrets": {"A=B": HUSH}},
    "other text that is none": {"secrets": {"TOKEN": HUSH}, "env": {"BROKEN": "\ud800"}},
    "too much": {"secrets": {"TOKEN": HUSH * 10_000}},
    "a file elsewhere": {"secret_files": {"/root/token": HUSH}},
    "a file below a file": {"secret_files": {"/dev/shm/a": HUSH, "/dev/shm/a/b": HUSH_FILE}},
}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_binding_that_is_refused(host: dutyfree.LocalHost, binding: str) -> None:
    with pytest.raises(dutyfree.CallerError) as caught:
        async with host.lease(**BINDINGS[binding]):  # type: ignore[arg-type]
            pass
    assert leaks(caught.value) == []


async def test_a_host_without_a_pool(substrate: str) -> None:
    async with dutyfree.local(substrate) as host:
        async with host.lease(**bound(substrate)) as box:  # type: ignore[arg-type]
            assert HUSH in (await box.run("env")).text
        with pytest.raises(LookupError) as caught:
            async with host.lease(**bound(substrate)):  # type: ignore[arg-type]
                raise LookupError
    assert leaks(caught.value) == []


async def test_groups_and_maps(host: dutyfree.LocalHost, substrate: str) -> None:
    with pytest.raises(LookupError) as caught:
        async with host.group(n=2, **bound(substrate)):
            raise LookupError
    assert leaks(caught.value) == []

    async def work(box: dutyfree.Box, task: int) -> None:
        raise LookupError

    with pytest.raises(LookupError) as caught:
        await host.map(work, [1, 2], **bound(substrate))
    assert leaks(caught.value) == []


def test_the_client_without_await(substrate: str) -> None:
    with dutyfree.sync.local(substrate, pool=PoolOptions(sandboxes=2)) as host:
        with pytest.raises(LookupError) as caught, host.lease(**bound(substrate)):  # type: ignore[arg-type]
            raise LookupError
        assert leaks(caught.value) == []
        broken = BINDINGS["text that is none"]
        with pytest.raises(dutyfree.CallerError) as refused, host.lease(**broken):  # type: ignore[arg-type]
            pass
        assert leaks(refused.value) == []

        def work(box: dutyfree.sync.Box, task: int) -> None:
            raise LookupError

        with pytest.raises(LookupError) as caught:
            host.map(work, [1], **bound(substrate))
        assert leaks(caught.value) == []
        with pytest.raises(LookupError) as caught, host.group(n=2, **bound(substrate)):
            raise LookupError
        assert leaks(caught.value) == []
