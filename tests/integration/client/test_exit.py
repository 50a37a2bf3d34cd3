"""Programs that end while hosts, leases and sandboxes are open: they exit soon, and leave nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from dutyfree.pool.status_file import StatusFile
from dutyfree.testing import leaks

pytestmark = pytest.mark.alone  # leak checks beside it would count the processes of hosts that were left open

EXIT_S = 5.0
"""A bound for a busy machine. On a quiet one, an exit takes less than a second."""

SYNC = {
    "a lease": "host = dutyfree.sync.local().__enter__(); lease = host.lease(); box = lease.__enter__()",
    "a handle": "host = dutyfree.sync.local().__enter__(); box = host.acquire()",
    "an exit stack": """
stack = contextlib.ExitStack()
host = stack.enter_context(dutyfree.sync.local())
box = stack.enter_context(host.lease())
shell = stack.enter_context(box.session())
""",
    "a stream": """
host = dutyfree.sync.local().__enter__(); box = host.acquire()
chunks = iter(box.stream("echo hi; sleep 600").__enter__()); next(chunks)
""",
    "a pool": """
host = dutyfree.sync.local(pool=dutyfree.PoolOptions(sandboxes=4)).__enter__(); box = host.acquire()
""",
    "two hosts": """
first = dutyfree.sync.local().__enter__(); host = dutyfree.sync.local().__enter__()
held = first.lease(); held.__enter__(); box = host.acquire()
""",
    "a forked worker": """
host = dutyfree.sync.local().__enter__(); lease = host.lease(); box = lease.__enter__()
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True); worker.start()
""",
}
ASYNC = {
    "a handle": "host = await dutyfree.local().__aenter__(); box = await host.acquire()",
    "a lease": "host = await dutyfree.local().__aenter__(); lease = host.lease(); box = await lease.__aenter__()",
    "a pool": """
host = await dutyfree.local(pool=dutyfree.PoolOptions(sandboxes=4)).__aenter__(); box = await host.acquire()
""",
}
HEAD = "import asyncio, contextlib, multiprocessing, sys, time, warnings, dutyfree, dutyfree.sync\n"


def sync_program(body: str, end: str) -> str:
    return f'{HEAD}{body}\nprint(box.run("echo seen").text.strip(), flush=True)\n{end}\n'


def async_program(body: str, end: str) -> str:
    lines = "\n    ".join(
        [*body.strip().splitlines(), 'print((await box.run("echo seen")).text.strip(), flush=True)', end]
    )
    return f"{HEAD}async def main():\n    {lines}\nasyncio.run(main())\n"


PROGRAMS = [pytest.param(sync_program(body, ""), 0, id=f"sync, {name}") for name, body in SYNC.items()]
PROGRAMS += [pytest.param(async_program(body, ""), 0, id=f"async, {name}") for name, body in ASYNC.items()]
PROGRAMS += [
    pytest.param(sync_program(SYNC["a lease"], "raise KeyError"), 1, id="sync, an exception"),
    pytest.param(async_program(ASYNC["a lease"], "raise KeyError"), 1, id="async, an exception"),
    pytest.param(sync_program(SYNC["a lease"], "sys.exit(3)"), 3, id="sync, sys.exit"),
]


@pytest.mark.parametrize(("program", "code"), PROGRAMS)
async def test_a_program_that_leaves_sandboxes_open_exits(program: str, code: int) -> None:
    before = leaks.snapshot()
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:  # noqa: ASYNC220
        assert running.stdout is not None
        assert running.stderr is not None
        try:
            assert await asyncio.to_thread(running.stdout.readline) == "seen\n", running.stderr.read()
            start_s = time.monotonic()
            assert await asyncio.to_thread(running.wait, EXIT_S) == code
        finally:
            running.kill()
        print(f"{time.monotonic() - start_s:.2f} s")
        errors = running.stderr.read()
    assert ("KeyError" in errors) == (code == 1)
    assert "Exception ignored" not in errors
    assert "Task was destroyed" not in errors
    StatusFile().close()  # the next pool removes the status file of one that was not closed
    assert await leaks.settle(before, hosts=[running.pid]) == []
