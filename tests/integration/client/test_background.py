"""Background processes of boxes, over cells: their life from the lease's point of view."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree import sync
from dutyfree.background import table


@pytest.fixture
async def host() -> AsyncIterator[dutyfree.LocalHost]:
    async with dutyfree.local(substrate="cell") as host:
        yield host


@pytest.fixture
async def box(host: dutyfree.LocalHost) -> AsyncIterator[dutyfree.Box]:
    async with host.lease() as leased:
        yield leased


def on_machine(mark: str) -> int:
    """How many processes of this machine have `mark` in their command line."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += mark.encode() in path.read_bytes()
        except OSError:
            continue
    return found


async def is_gone(mark: str) -> bool:
    """Whether no process has `mark` in its command line, now or within 10 s."""
    for _ in range(200):
        if not on_machine(mark):
            return True
        await asyncio.sleep(0.05)
    return False


async def all_of(process: dutyfree.Process, offset: int = 0) -> bytes:
    return b"".join([chunk.data async for chunk in process.output(offset)])


async def ready(process: dutyfree.Process) -> None:
    """Wait for the first output."""
    assert await process.read(0, timeout_s=20) is not None


async def test_a_process_is_found_again_through_another_box_of_the_lease(
    host: dutyfree.LocalHost, box: dutyfree.Box
) -> None:
    process = await box.start("echo one; read word; echo $word", stdin=True)
    await ready(process)
    other = await host.get(box.lease.id)
    again = other.process(process.id)
    assert [info.id for info in await other.processes()] == [process.id]
    assert again.command == process.command
    await again.write(b"two\n")
    assert (await process.wait(20)).ok
    assert await all_of(again) == b"one\ntwo\n"
    assert await all_of(again, 4) == b"two\n"
    assert not again.info.running


async def test_a_process_outlives_the_task_and_the_handle_that_started_it(box: dutyfree.Box) -> None:
    async def begin() -> None:
        process = await box.start("echo ready; read word; echo $word", stdin=True)
        async for _ in process.output():
            started.set_result(process.id)

    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(begin())
    process_id = await started
    task.cancel()
    await asyncio.wait([task])
    del task
    gc.collect()
    process = box.process(process_id)
    assert process.info.running
    await process.write(b"still here\n")
    assert await all_of(process) == b"ready\nstill here\n"


async def test_the_leases_environment_is_that_of_its_processes(host: dutyfree.LocalHost) -> None:
    async with host.lease(env={"COLOUR": "blue", "SIZE": "1"}) as box:
        process = await box.start("echo $COLOUR $SIZE; pwd", env={"SIZE": "2"}, cwd="/tmp")
        assert await all_of(process) == b"blue 2\n/tmp\n"


async def test_waits_and_reads_have_timeouts_that_end_nothing(box: dutyfree.Box) -> None:
    process = await box.start("echo ready; read word", stdin=True)
    await ready(process)
    with pytest.raises(TimeoutError):
        await process.wait(0.02)
    with pytest.raises(TimeoutError):
        await process.read(6, timeout_s=0)
    assert await process.read(0, limit_bytes=3, timeout_s=0) == dutyfree.OutputChunk("stdout", b"rea", 0)
    with pytest.raises(dutyfree.InvalidRequest, match="offset 7"):
        await process.read(7)
    await process.end_input()
    seen = await asyncio.gather(*(process.wait() for _ in range(5)))
    assert len(set(map(id, seen))) == 1
    assert await process.read(6) is None


@pytest.mark.parametrize("pool", [None, dutyfree.PoolOptions(sandboxes=2)])
async def test_the_end_of_the_lease_ends_processes_without_waiting_for_them(pool: dutyfree.PoolOptions | None) -> None:
    mark = f"7{time.monotonic_ns() % 10**9}"
    async with dutyfree.local(substrate="cell", pool=pool) as host:
        box = await host.acquire()
        for _ in range(100):
            process = await box.start(["sh", "-c", f"trap '' TERM; echo ready; sleep 1000; : {mark}"])
        await ready(process)
        reader = asyncio.create_task(all_of(process))
        waiter = asyncio.create_task(process.wait())
        await asyncio.sleep(0.05)
        start_s = time.monotonic()
        await box.close()
        assert time.monotonic() - start_s < 2
        for task in (reader, waiter):
            with pytest.raises(dutyfree.LeaseLost):
                await task
        for call in (process.wait, process.kill, box.processes, lambda: box.start("true"), lambda: process.write(b"")):
            with pytest.raises(dutyfree.LeaseLost):
                await call()
        with pytest.raises(dutyfree.LeaseLost):
            _ = process.info
        assert await is_gone(mark)


async def test_expiry_ends_processes(host: dutyfree.LocalHost) -> None:
    mark = f"7{time.monotonic_ns() % 10**9}"
    box = await host.acquire(ttl_s=0.3)
    process = await box.start(["sh", "-c", f"echo ready; sleep 1000; : {mark}"])
    with pytest.raises(dutyfree.LeaseLost):
        await process.wait()
    assert await is_gone(mark)


async def test_a_reset_is_named_and_new_processes_can_be_started(box: dutyfree.Box) -> None:
    process = await box.start("echo ready; sleep 1000")
    await ready(process)
    await box.reset()
    with pytest.raises(dutyfree.SandboxReset):
        await process.wait()
    chunks = process.output()
    assert (await anext(chunks)).data == b"ready\n"
    with pytest.raises(dutyfree.SandboxReset):
        await anext(chunks)
    (info,) = await box.processes()
    assert isinstance(info.error, dutyfree.SandboxReset)
    assert (info.running, info.exit_code, info.signal) == (False, None, None)
    assert await all_of(await box.start("echo again")) == b"again\n"


async def test_a_dead_sandbox_is_an_error_of_the_infrastructure(box: dutyfree.Box) -> None:
    process = await box.start("echo ready; sleep 1000")
    await ready(process)
    await box.destroy()
    with pytest.raises(dutyfree.InfraFailed):
        await process.wait()
    with pytest.raises(dutyfree.SandboxGone):
        await box.start("true")


async def test_a_sandbox_that_dies_is_an_error_for_every_reader(box: dutyfree.Box) -> None:
    process = await box.start("echo ready; sleep 1000")
    await ready(process)
    reader = asyncio.create_task(all_of(process))
    await asyncio.sleep(0)
    pid: int = box._sandbox.pid  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(dutyfree.InfraFailed):
        await process.wait()
    with pytest.raises(dutyfree.InfraFailed):
        await reader
    assert (process.info.running, process.info.exit_code) == (False, None)
    assert isinstance(process.info.error, dutyfree.InfraFailed)
    assert not box.alive


@pytest.mark.parametrize("pool", [None, dutyfree.PoolOptions(sandboxes=2)])
async def test_the_end_of_the_host_leaves_no_task(pool: dutyfree.PoolOptions | None) -> None:
    before = asyncio.all_tasks()
    async with dutyfree.local(substrate="cell", pool=pool) as host:
        box = await host.acquire()
        process = await box.start("echo ready; sleep 1000")
        await ready(process)
        await box.start("sleep 1000")  # its task has not begun when the host ends
    assert asyncio.all_tasks() == before


async def test_the_processes_of_ended_forks_are_forgotten_at_last(
    box: dutyfree.Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MAX_TABLES", 2)
    await all_of(await box.start("echo kept"))
    for _ in range(3):
        (fork,) = await box.fork(1)
        assert await all_of(await fork.start("echo fork")) == b"fork\n"
        await fork.close()
    background = box._grant.background  # type: ignore[attr-defined]
    assert len(background._tables) == 2
    assert await all_of(box.process("p1")) == b"kept\n"


async def test_a_fork_has_the_files_and_processes_of_its_own(box: dutyfree.Box) -> None:
    process = await box.start("echo ready > /tmp/ready; cat /tmp/ready; sleep 1000")
    await ready(process)
    (fork,) = await box.fork(1)
    assert await fork.processes() == []
    with pytest.raises(dutyfree.InvalidRequest):
        fork.process(process.id)
    own = await fork.start("cat /tmp/ready")
    assert own.id != process.id
    assert await all_of(own) == b"ready\n"
    assert [info.id for info in await fork.processes()] == [own.id]
    assert process.info.running
    still = await fork.start("sleep 1000")
    await fork.destroy()
    with pytest.raises(dutyfree.InfraFailed):
        await still.wait()
    assert process.info.running


async def test_the_number_of_processes_is_bounded(box: dutyfree.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_RUNNING", 3)
    monkeypatch.setattr(table, "MAX_FINISHED", 2)
    running = [await box.start("read word", stdin=True) for _ in range(3)]
    with pytest.raises(dutyfree.CapacityError):
        await box.start("true")
    for process in running:
        await process.end_input()
        await process.wait()
    assert [info.id for info in await box.processes()] == [process.id for process in running[1:]]
    with pytest.raises(dutyfree.InvalidRequest, match="finished"):
        box.process(running[0].id)
    with pytest.raises(dutyfree.InvalidRequest):
        await running[0].read(0)
    for keep_output_bytes in (0, 2**40):
        with pytest.raises(dutyfree.InvalidRequest):
            await box.start("true", keep_output_bytes=keep_output_bytes)


async def test_a_slow_reader_learns_what_it_has_missed(box: dutyfree.Box) -> None:
    size, keep_bytes = 5_000_000, 100_000
    process = await box.start(f"head -c {size} /dev/zero", keep_output_bytes=keep_bytes)
    assert (await process.wait()).stdout_bytes == size
    info = process.info
    assert (info.output_bytes, info.lost_bytes) == (size, size - keep_bytes)
    chunks = [chunk async for chunk in process.output(1000)]
    assert chunks[0].lost_bytes == size - keep_bytes - 1000
    assert sum(len(chunk.data) for chunk in chunks) == keep_bytes


def test_without_await() -> None:
    with sync.local(substrate="cell") as host, host.lease() as box:
        process = box.start("echo one; read word; echo $word", stdin=True)
        for chunk in process.output():
            assert chunk.data == b"one\n"
            break
        box.process(process.id).write(b"two\n")
        assert [chunk.data for chunk in process.output(4)] == [b"two\n"]
        assert process.wait(timeout_s=10).ok
        assert [info.exit_code for info in box.processes()] == [0]
        assert not process.info.running
        with pytest.raises(TimeoutError):
            box.start("sleep 1000").wait(timeout_s=0.02)


async def test_a_process_on_a_terminal_is_resized_written_to_and_read_by_many(box: dutyfree.Box) -> None:
    process = await box.start(["/bin/sh"], terminal=(30, 90), env={"PS1": "$ "})
    await process.write(b"tty && stty size\n")
    seen, offset = b"", 0
    while b"30 90" not in seen:
        chunk = await process.read(offset, timeout_s=20)
        assert chunk is not None
        assert chunk.stream == "stdout"
        seen, offset = seen + chunk.data, chunk.end
    assert b"/dev/pts/" in seen
    await process.resize(40, 100)
    await process.write(b"stty size; exit 3\n")
    assert (await process.wait(20)).exit_code == 3
    assert (await all_of(box.process(process.id), offset)).count(b"40 100") == 1
    assert [each.terminal for each in await box.processes()] == [True]
    await process.write(b"late")
    await process.resize(1, 1)


async def test_a_process_on_a_terminal_is_ended_by_signals_kill_timeout_and_the_lease(
    host: dutyfree.LocalHost, box: dutyfree.Box
) -> None:
    process = await box.start("sleep 4321", terminal=(24, 80))
    await process.signal(signal.SIGTERM)
    assert (await process.wait(20)).signal == signal.SIGTERM
    process = await box.start("trap '' HUP TERM; sleep 4321", terminal=(24, 80))
    await process.kill()
    assert (await process.wait(20)).signal == signal.SIGKILL
    process = await box.start("sleep 4321", terminal=(24, 80), timeout_s=0.2)
    seen = await process.wait(20)
    assert seen.timed_out
    async with host.lease() as other:
        process = await other.start("echo ready; sleep 98437", terminal=(24, 80))
        await ready(process)
        assert on_machine("98437")
    assert await is_gone("98437")
    with pytest.raises(dutyfree.LeaseLost):
        await process.resize(24, 80)


async def test_what_a_terminal_cannot_do_is_refused(box: dutyfree.Box) -> None:
    process = await box.start("cat", terminal=(24, 80))
    with pytest.raises(dutyfree.InvalidRequest, match="end of input"):
        await process.end_input()
    await process.write(b"\x04")
    assert (await process.wait(20)).exit_code == 0
    plain = await box.start("true")
    with pytest.raises(dutyfree.InvalidRequest, match="no terminal"):
        await plain.resize(24, 80)
    for size in ((0, 80), (24, 70_000), (24,), 24):
        with pytest.raises(dutyfree.InvalidRequest):
            await box.start("true", terminal=size)  # type: ignore[arg-type]
    lost = await box.start("true", cwd="/nowhere", terminal=(24, 80))
    with pytest.raises(dutyfree.InvalidRequest, match="working directory"):
        await lost.wait(20)
    await lost.write(b"late")


async def test_leases_are_found_by_owner_and_labels(host: dutyfree.LocalHost) -> None:
    async with (
        host.lease(owner="ann", labels={"task": "1", "step": "a"}) as first,
        host.lease(owner="bob", labels={"task": "1"}) as second,
    ):
        begun = time.time()
        assert first.lease.started_at <= begun < first.lease.started_at + 60
        both = await host.find_leases(labels={"task": "1"})
        assert [each.id for each in both] == [first.lease.id, second.lease.id]
        assert [each.id for each in await host.find_leases(owner="bob")] == [second.lease.id]
        assert await host.find_leases(owner="bob", labels={"task": "2"}) == []
        await second.set_labels({"task": "2"})
        again = await host.get(second.lease.id)
        await again.renew(60)
        assert again.lease.labels == {"task": "2"}
        assert [each.id for each in await host.find_leases(owner="bob", labels={"task": "2"})] == [second.lease.id]
    with pytest.raises(dutyfree.LeaseLost):
        await second.set_labels({})


async def test_a_directory_is_watched_in_the_background(box: dutyfree.Box) -> None:
    await box.run("mkdir -p /tmp/seen/below")
    process = await box.start_watch("/tmp/seen", recursive=True)
    first = await process.read(0, timeout_s=20)
    assert first is not None
    assert json.loads(first.data) == {"kind": "ready"}
    await box.run("echo hello > /tmp/seen/below/a; mv /tmp/seen/below/a /tmp/seen/b; rm /tmp/seen/b")
    lines, offset = b"", first.end
    while b"removed" not in lines:
        chunk = await process.read(offset, timeout_s=20)
        assert chunk is not None
        lines, offset = lines + chunk.data, chunk.end
    events = [json.loads(line) for line in lines.splitlines()]
    assert {"kind": "created", "path": "/tmp/seen/below/a"} in events
    assert {"kind": "moved", "path": "/tmp/seen/b", "moved_from": "/tmp/seen/below/a"} in events
    assert [each.watch for each in await box.processes()] == [True]
    await process.kill()
    assert await process.read(offset, timeout_s=20) is None
    lost = await box.start_watch("/nowhere")
    with pytest.raises(dutyfree.FileFailed):
        await lost.read(0, timeout_s=20)


async def test_a_process_waits_for_a_slow_reader_if_it_was_asked_to(box: dutyfree.Box) -> None:
    size = 4 * 1024 * 1024
    process = await box.start(f"head -c {size} /dev/zero", keep_output_bytes=64 * 1024, reader_wait_s=60)
    taken = 0
    while (chunk := await process.read(taken, limit_bytes=48 * 1024, timeout_s=20)) is not None:
        assert not chunk.lost_bytes
        taken = chunk.end
        if taken < 1024 * 1024:
            await asyncio.sleep(0.005)  # slower than the process
    assert taken == size


async def test_a_process_does_not_wait_longer_for_a_reader_that_is_gone(box: dutyfree.Box) -> None:
    size = 1024 * 1024
    process = await box.start(f"head -c {size} /dev/zero", keep_output_bytes=64 * 1024, reader_wait_s=0.2)
    assert (await process.read(0, timeout_s=20)) is not None
    assert (await process.wait(20)).ok
    assert process.info.lost_bytes == size - 64 * 1024
