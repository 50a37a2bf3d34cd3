"""Children that the host process forks must not keep its sandboxes alive, nor be able to harm them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree import claims
from dutyfree.model import Action, SandboxSpec, Writes
from dutyfree.substrates.cell import CellSubstrate

FORKS = {
    "os.fork": "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\n",
    "multiprocessing": (
        "import multiprocessing, time\n"
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,), daemon=True).start()\n"
    ),
    # No hook of Python's runs: what other libraries do. The spawner's own watch on the process must do.
    "libc": "import ctypes, os, time\nif ctypes.CDLL(None).fork() == 0:\n    time.sleep(60)\n    os._exit(0)\n",
}
HOST = """
import asyncio, os, sys, dutyfree
FORK = {fork!r}

async def main():
    async with dutyfree.local({substrate!r}) as host:
        async with host.lease() as box:
            exec(FORK, {{}})
            await box.run("sleep 1000 > /dev/null 2>&1 &")
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
print("closed", flush=True)
os._exit(0)
"""


@contextlib.contextmanager
def forking_host(substrate: str, fork: str) -> Iterator[subprocess.Popen[str]]:
    """A host process with a sandbox and a forked child; a process group, all of which is gone at the end."""
    code = HOST.format(substrate=substrate, fork=FORKS[fork])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in listed for child in (task / "children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found


@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("substrate", ["cell", "process"])
def test_a_killed_host_takes_its_sandboxes_along_though_a_child_lives_on(substrate: str, fork: str) -> None:
    if (substrate, fork) == ("process", "libc"):
        pytest.skip("without isolation, nobody but the stream tells a guest that its host is dead")
    with forking_host(substrate, fork) as process:
        family = descendants_of(process.pid)
        forked = [pid for pid in family if os.getpgid(pid) == process.pid]
        others = [pid for pid in family if pid not in forked]
        assert len(forked) == 1
        assert others
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        start = time.monotonic()
        while any(map(is_alive, others)):
            assert time.monotonic() - start < 2.0, "sandboxes live as long as the child"
            time.sleep(0.02)
        assert is_alive(forked[0])


@pytest.mark.parametrize("fork", FORKS)
def test_an_orderly_close_does_not_wait_for_a_child(fork: str) -> None:
    with forking_host("cell", fork) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        start = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert time.monotonic() - start < 3.0


async def test_a_child_that_leaves_its_parents_blocks_takes_nothing_away() -> None:
    async with CellSubstrate() as cells:
        async with await cells.create(SandboxSpec(writes=Writes.DISK)) as box:
            pid = os.fork()
            if pid == 0:
                try:
                    await cells.close()
                finally:
                    os._exit(0)
            await asyncio.to_thread(os.waitpid, pid, 0)
            assert (await box.run(Action("echo still here"))).stdout == b"still here\n"
        async with await cells.create(SandboxSpec(writes=Writes.DISK)) as another:
            assert (await another.run(Action("echo and more"))).stdout == b"and more\n"


def test_a_claim_dies_with_its_process_though_a_child_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "state_base", lambda: tmp_path)
    code = (
        "from pathlib import Path\nfrom dutyfree import claims\n"
        f"claims.state_base = lambda: Path({str(tmp_path)!r})\n"
        "claimed = claims.claim('x')\n" + FORKS["os.fork"] + "print(claimed.name, flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            name = process.stdout.readline().strip()
            assert not claims.is_dead(name, "x")
            process.kill()
            process.wait()
            deadline = time.monotonic() + 5.0
            while not claims.is_dead(name, "x"):  # the child gives up its copy when it first runs
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
