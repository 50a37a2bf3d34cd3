"""A cell has few netlink sockets at a time, whatever it does, and gets one whenever it has not as many open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import platform
import random
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Action, Network, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate

MOST = 16
ROUNDS = 30

IN_THREADS = """
import socket, threading
made = []
def ask():
    for _ in range(4):
        try:
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        except OSError:
            pass
threads = [threading.Thread(target=ask) for _ in range(32)]
for each in threads: each.start()
for each in threads: each.join()
print(len(made))
"""
IN_FLIGHT = """
import array, os, socket
ours, theirs = socket.socketpair()
sent = 0
try:
    while sent < 64:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))])
        made.close()
        sent += 1
except OSError as error:
    print(sent, error.errno)
"""
ONE_BY_ONE = """
import os, socket
for _ in range(100):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0) as made:
        assert not os.get_inheritable(made.fileno()) and not os.get_blocking(made.fileno())
        made.bind((0, 0))
print(socket.if_nameindex()[0][1])
"""

BEHIND_A_LISTENER = """
import asyncio, ctypes, sys
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

ALLOW = ctypes.create_string_buffer((6).to_bytes(2, "little") + bytes(2) + (0x7FFF0000).to_bytes(4, "little"), 8)
SYS_SECCOMP, NO_NEW_PRIVS, NEW_LISTENER = {"x86_64": 317, "aarch64": 277}[sys.argv[1]], 38, 8
kernel = ctypes.CDLL(None, use_errno=True)
assert kernel.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
program = Program(1, ctypes.addressof(ALLOW))
assert kernel.syscall(SYS_SECCOMP, 1, NEW_LISTENER, ctypes.byref(program)) >= 0

async def main():
    async with CellSubstrate() as cells, await cells.create(SandboxSpec()) as box:
        seen = await box.run(Action(["python3", "-c", sys.argv[2]]))
        print(seen.text or seen.stderr.decode())

asyncio.run(main())
"""
ONE = """
import socket
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
except OSError as error:
    print(error.errno)
"""


@pytest.fixture
async def cells() -> AsyncIterator[CellSubstrate]:
    try:
        async with CellSubstrate() as substrate:
            yield substrate
    except SubstrateUnavailable as error:
        pytest.skip(f"cells: {error}")


async def python(box: Sandbox, program: str) -> str:
    seen = await box.run(Action(["python3", "-c", program], timeout_s=30))
    assert seen.ok, seen.stderr
    return seen.text.strip()


@pytest.mark.parametrize("network", [Network.NONE, Network.HOST])
async def test_few_at_a_time_and_any_number_one_by_one(cells: CellSubstrate, network: Network) -> None:
    async with await cells.create(SandboxSpec(network=network)) as box:
        assert 4 <= int(await python(box, IN_THREADS)) <= MOST
        sent, reason = (int(word) for word in (await python(box, IN_FLIGHT)).split())
        assert 4 <= sent <= MOST
        assert reason == errno.ENOBUFS
        assert await python(box, ONE_BY_ONE) == "lo"


async def test_cells_that_die_as_they_are_born_take_nothing_from_others(cells: CellSubstrate) -> None:
    rng = random.Random(11)

    async def cut_short() -> None:
        birth = asyncio.create_task(cells.create(SandboxSpec()))
        await asyncio.sleep(rng.random() * 0.02)
        birth.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await birth).destroy()

    async with await cells.create(SandboxSpec()) as box:
        for _ in range(ROUNDS):
            await asyncio.gather(*(cut_short() for _ in range(8)))
        assert await python(box, ONE_BY_ONE) == "lo"


def test_behind_a_filter_that_has_a_listener_there_are_cells_without_netlink() -> None:
    """The kernel allows one listener: some container engines have it."""
    command = [sys.executable, "-c", BEHIND_A_LISTENER, platform.machine(), ONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "SubstrateUnavailable" in done.stderr:
        pytest.skip(f"cells: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(errno.EPROTONOSUPPORT)
