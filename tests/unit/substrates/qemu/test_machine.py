"""One process and its monitor: what it is asked, what it should not say, and its end. No machine is started."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dutyfree.errors import CapacityError, DeadlineExceeded, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.memory import PAGE_BYTES, copy_memory, mappings, punch_holes
from dutyfree.substrates.qemu.monitor import Monitor

Answer = Callable[[dict[str, object]], bytes]


def returned(request: dict[str, object], value: object) -> bytes:
    return json.dumps({"return": value, "id": request["id"]}).encode() + b"\n"


async def speak(sock: socket.socket, answer: Answer) -> None:
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(b'{"QMP": {"version": {}}}\n')
    with suppress(ConnectionError):
        while line := await reader.readline():
            writer.write(answer(json.loads(line)))
    writer.close()


async def monitored(answer: Answer) -> AsyncIterator[Monitor]:
    ours, theirs = socket.socketpair()

    def polite(request: dict[str, object]) -> bytes:
        return returned(request, {}) if request["execute"] == "qmp_capabilities" else answer(request)

    speaking = asyncio.create_task(speak(theirs, polite))
    monitor = await Monitor.over(ours)
    yield monitor
    await monitor.close()
    await speaking


async def test_arguments_are_spelled_as_qemu_wants_them() -> None:
    seen: list[object] = []

    def answer(request: dict[str, object]) -> bytes:
        seen.append(request["arguments"])
        return returned(request, 7)

    async for monitor in monitored(answer):
        assert await monitor.command("device-add", bus_name="x") == 7
    assert seen == [{"bus-name": "x"}]


async def test_a_refusal_is_told_with_its_reason() -> None:
    def answer(request: dict[str, object]) -> bytes:
        return json.dumps({"error": {"class": "GenericError", "desc": "not now"}, "id": request["id"]}).encode() + b"\n"

    async for monitor in monitored(answer):
        with pytest.raises(SubstrateFailed, match="not now"):
            await monitor.command("stop")


async def test_silence_ends_with_a_deadline() -> None:
    async for monitor in monitored(lambda request: b""):
        with pytest.raises(DeadlineExceeded):
            await monitor.command("stop", timeout_s=0.05)


@pytest.mark.parametrize(
    "said", [b"no json\n", b"[1]\n", b"[" * 50_000 + b"\n", b"x" * (2 * 1024**2) + b"\n", b'"' + b"\xff" * 9 + b'"\n']
)
async def test_what_is_no_answer_ends_the_monitor_and_nobody_hangs(said: bytes) -> None:
    async for monitor in monitored(lambda request: said):
        with pytest.raises(SubstrateFailed):
            await monitor.command("stop", timeout_s=5)
        with pytest.raises(SubstrateFailed):
            await monitor.command("stop", timeout_s=5)


async def test_stray_answers_are_ignored_and_events_reach_their_waiters() -> None:
    def answer(request: dict[str, object]) -> bytes:
        stray = b'{"return": 1, "id": 999}\n{"return": 1}\n{"event": "STOP", "data": 5}\n{"event": "STOP"}\n'
        return stray + returned(request, None)

    async for monitor in monitored(answer):
        stopped = monitor.expect("STOP")
        await monitor.command("stop")
        assert await stopped == {}


def program(directory: Path, body: str) -> str:
    path = directory / "machine"
    path.write_text(f"#!/usr/bin/env python3\nimport json, os, socket, sys, time\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


OBEDIENT = """
fd = int(sys.argv[sys.argv.index("-chardev") + 1].rpartition("=")[2])
stream = socket.socket(fileno=fd).makefile("rw")
stream.write('{"QMP": {}}\\n'); stream.flush()
for line in stream:
    stream.write(json.dumps({"return": {}, "id": json.loads(line)["id"]}) + "\\n"); stream.flush()
time.sleep(600)
"""


async def test_a_machine_that_is_killed_tells_its_listeners_and_refuses_commands(tmp_path: Path) -> None:
    machine = await Machine.start([program(tmp_path, OBEDIENT)], directory=tmp_path)
    died = asyncio.Event()
    machine.on_death(died.set)
    assert await machine.command("query-status") == {}
    os.kill(machine.pid, signal.SIGKILL)
    await asyncio.wait_for(died.wait(), 5)
    assert not machine.alive
    with pytest.raises(SubstrateFailed):
        await machine.command("query-status")
    await asyncio.gather(machine.end(), machine.end())
    told: list[bool] = []
    machine.on_death(lambda: told.append(True))
    assert told == [True]


async def test_a_machine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SubstrateFailed, match="no such board"):
        await Machine.start([program(tmp_path, "sys.exit('no such board')")], directory=tmp_path)
    with pytest.raises(SubstrateUnavailable, match="no program"):
        await Machine.start([str(tmp_path / "absent")], directory=tmp_path)


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + '.')\ntime.sleep(600)"
    starting = asyncio.create_task(Machine.start([program(tmp_path, body)], directory=tmp_path))
    pid = await asyncio.to_thread(written, tmp_path / "pid")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(("number", "expected"), [(errno.EMFILE, CapacityError), (errno.EPERM, SubstrateFailed)])
async def test_a_machine_that_cannot_be_watched_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    seen: list[int] = []

    def refused(pid: int) -> int:
        seen.append(pid)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(expected):
        await Machine.start([program(tmp_path, OBEDIENT)], directory=tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[-1], 0)


def written(path: Path) -> int:
    while not path.exists() or not path.read_text().endswith("."):
        time.sleep(0.01)
    return int(path.read_text()[:-1])


MAPS = """7f0000000000-7f0000002000 rw-p 00000000 fe:01 42 /memory (deleted)
7f0000002000-7f0000004000 rw-p 00002000 fe:01 42 /memory (deleted)
7f0000004000-7f0000005000 r--p 00000000 fe:01 43 /other
7f0000005000-7f0000006000 rw-p 00000000 00:00 0
7f0000006000-7f0000007000 rw-p 00000000 fe:02 42 /another memory
"""


def test_a_file_is_found_in_an_address_space() -> None:
    found = mappings(MAPS.splitlines(), 42, "memory")
    assert found == [(0x7F0000000000, 0x2000, 0), (0x7F0000002000, 0x2000, 0x2000)]


def test_a_process_that_has_not_all_of_the_memory_is_no_machine_to_copy(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(bytes(4 * PAGE_BYTES))
    with base.open("r+b") as file, pytest.raises(SubstrateFailed, match="address space"):
        copy_memory(os.getpid(), file.fileno(), tmp_path / "copy", shared=False)


def test_digging_goes_on_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "memory", os.pwrite
    path.write_bytes(content := os.urandom(9 * PAGE_BYTES))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:1000], at))
    punch_holes(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("shared", [True, False])
def test_a_copy_of_memory_is_what_the_process_sees(tmp_path: Path, shared: bool) -> None:
    import mmap

    base = tmp_path / "base"
    base.write_bytes(b"a" * PAGE_BYTES + bytes(9 * PAGE_BYTES) + b"z" * PAGE_BYTES)
    punch_holes(base)
    with base.open("r+b") as file:
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        with mmap.mmap(file.fileno(), 11 * PAGE_BYTES, flags, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            memory[3 * PAGE_BYTES : 3 * PAGE_BYTES + 4] = b"mine"
            memory[5 * PAGE_BYTES : 7 * PAGE_BYTES] = b"m" * (2 * PAGE_BYTES)
            memory[10 * PAGE_BYTES] = ord("y")
            assert memory[0:1] == b"a"  # a page that was only read
            copy_memory(os.getpid(), file.fileno(), tmp_path / "copy", shared=shared)
            assert (tmp_path / "copy").read_bytes() == memory[:]
    assert (base.read_bytes()[3 * PAGE_BYTES : 3 * PAGE_BYTES + 4] == b"mine") == shared


def test_digging_keeps_the_content_and_frees_what_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    content = b"x" + bytes(4 * 1024**2) + b"y" * 70_000 + bytes(1024**2)
    path.write_bytes(content)
    punch_holes(path)
    assert path.read_bytes() == content
    assert path.stat().st_blocks * 512 < 1024**2
    assert list(tmp_path.iterdir()) == [path]
