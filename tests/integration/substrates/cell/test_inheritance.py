"""What a cell has from the process that made it, and what its look after a reset sees."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate, purity
from dutyfree.substrates.cell.sandbox import CellSandbox

HOST = """
import asyncio, ctypes, json, sys
from pathlib import Path
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate

Path("/proc/self/oom_score_adj").write_text("200")
SYS_KEYCTL, SYS_ADD_KEY, JOIN, SESSION = {"x86_64": (250, 248), "aarch64": (219, 217)}[sys.argv[1]] + (1, -3)
kernel = ctypes.CDLL(None, use_errno=True)
kernel.syscall(SYS_KEYCTL, JOIN, b"dutyfree-test")
made = kernel.syscall(SYS_ADD_KEY, b"user", b"dutyfree-secret", b"x", ctypes.c_size_t(1), SESSION)

async def main():
    async with CellSubstrate() as cells, await cells.create(SandboxSpec()) as box:
        seen = await box.run(Action("cat /proc/1/oom_score_adj /proc/self/oom_score_adj; cat /proc/keys"))
        print(json.dumps([made, *seen.text.split("\\n", 2)]))

asyncio.run(main())
"""

TIME_WAIT = """
import socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((address, 0), family=family)
    client = socket.create_connection(server.getsockname()[:2])
    other, _ = server.accept()
    for each in (client, other, server):
        each.close()
"""


def test_neither_the_hosts_keys_nor_its_place_in_the_order_of_killing_is_a_cells() -> None:
    command = [sys.executable, "-c", HOST, platform.machine()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "SubstrateUnavailable" in done.stderr:
        pytest.skip(f"cells: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    made, guest, command_score, keys = json.loads(done.stdout)
    assert (guest, command_score) == ("0", "500")
    assert "dutyfree" not in keys
    if made < 0:
        pytest.skip("a key for the host's session: the kernel keeps none here")


def look(box: Sandbox, empty: Path) -> purity.Condition:
    assert isinstance(box, CellSandbox)
    return purity.inspect(box.pid, own_network=True, upper=empty)


async def test_connections_that_still_keep_their_ports_are_seen_from_outside(tmp_path: Path) -> None:
    try:
        async with CellSubstrate() as cells, await cells.create(SandboxSpec()) as box:
            before = look(box, tmp_path)
            seen = await box.run(Action(["python3", "-c", TIME_WAIT]))
            assert seen.ok, seen.stderr
            after = look(box, tmp_path)
    except SubstrateUnavailable as error:
        pytest.skip(f"cells: {error}")
    assert after.processes == 0
    assert after.sockets == before.sockets + 2
    assert purity.differences(after, before) == [f"sockets: {after.sockets}, not {before.sockets}"]
