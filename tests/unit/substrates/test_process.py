"""The process substrate with the real guest: what it holds, what it gives back, and big transfers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dutyfree import native
from dutyfree.errors import FileFailed, InvalidRequest, LinkFailed, SubstrateFailed, SubstrateUnavailable
from dutyfree.model import Action, Network, Phase, Resources, SandboxSpec, Span
from dutyfree.substrates.process import ProcessSandbox, ProcessSubstrate
from dutyfree.wire.frames import FROM_GUEST, FrameDecoder
from dutyfree.wire.messages import VERSION, Fault, HostHello, HostMessage, Mode, OutputCredit, Run, decode_guest

MIB = 1024 * 1024


@pytest.fixture
async def substrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessSubstrate]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with ProcessSubstrate() as substrate:
        yield substrate
    assert names(tmp_path) == []


@pytest.fixture
async def box(substrate: ProcessSubstrate) -> ProcessSandbox:
    return await substrate.create(SandboxSpec())


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def eventually_ended(pid: int) -> bool:
    for _ in range(200):
        if has_ended(pid):
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_sandbox_is_one_fresh_directory_and_an_environment_of_its_own(
    box: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the host")
    seen = await box.run(Action("pwd; echo $HOME $TMPDIR; env; ls -A"))
    directory = seen.text.splitlines()[0]
    assert seen.text.splitlines()[1] == f"{directory} {directory}"
    assert "SECRET" not in seen.text
    assert os.environ["PATH"] in seen.text


async def test_every_missing_bound_is_named(substrate: ProcessSubstrate) -> None:
    strict = await substrate.create(SandboxSpec(resources=Resources(cpus=1.0)))
    limits = {"limit-memory", "limit-cpu", "limit-pids", "limit-disk"}
    assert {each.what for each in strict.unenforced} == {*limits, "deny-network"}
    unbounded = Resources(memory_bytes=None, pids=None, disk_bytes=None)
    loose = await substrate.create(SandboxSpec(resources=unbounded, network=Network.HOST))
    assert loose.unenforced == ()


async def test_spans_of_a_life(substrate: ProcessSubstrate) -> None:
    spans: list[Span] = []
    async with await substrate.create(SandboxSpec(), spans.append) as box:
        await box.run(Action("true"))
    phases = [Phase.CREATE, Phase.READY, Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE, Phase.DESTROY]
    assert [span.phase for span in spans] == phases
    assert all(span.sandbox == box.id for span in spans)


async def test_a_creation_cancelled_at_any_moment_leaves_nothing(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    for moment in range(12):
        creating = asyncio.create_task(substrate.create(SandboxSpec()))
        for _ in range(moment):
            await asyncio.sleep(0)
        creating.cancel()
        (outcome,) = await asyncio.gather(creating, return_exceptions=True)
        if isinstance(outcome, ProcessSandbox):
            await outcome.destroy()
    (owned,) = names(tmp_path)
    assert names(tmp_path / owned) == []


async def test_a_guest_that_exits_at_once_is_a_failed_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = tmp_path / "dutyfree-guest"
    guest.write_text("#!/bin/sh\nexit 3\n")
    guest.chmod(0o755)
    monkeypatch.setenv(native.OVERRIDE, str(tmp_path))
    async with ProcessSubstrate() as substrate:
        with pytest.raises(SubstrateFailed, match="did not come up"):
            await substrate.create(SandboxSpec())


async def test_a_missing_guest_is_told_at_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.OVERRIDE, str(tmp_path))
    with pytest.raises(SubstrateUnavailable) as caught:
        await ProcessSubstrate().open()
    assert native.OVERRIDE in (caught.value.hint or "")


async def test_a_substrate_that_is_not_open_creates_nothing() -> None:
    with pytest.raises(InvalidRequest):
        await ProcessSubstrate().create(SandboxSpec())


async def test_destroy_ends_background_processes_and_removes_even_locked_directories(
    box: ProcessSandbox, tmp_path: Path
) -> None:
    seen = await box.run(Action("mkdir -p a/b; touch a/b/c; chmod 0 a/b a; setsid sleep 1000 >&- 2>&- & echo $!"))
    await box.destroy()
    assert await eventually_ended(int(seen.text))
    assert await eventually_ended(box.pid)
    (owned,) = names(tmp_path)
    assert names(tmp_path / owned) == []


async def test_what_a_killed_guest_left_behind_is_killed_by_destroy(box: ProcessSandbox) -> None:
    seen = await box.run(Action("sleep 1000 >&- 2>&- & echo $!"))
    running = asyncio.create_task(box.run(Action("sleep 1000")))
    await asyncio.sleep(0.1)
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(LinkFailed):
        await running
    assert not box.alive
    await box.destroy()
    assert await eventually_ended(int(seen.text))


OWNER = """
import asyncio, tempfile
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.process import ProcessSubstrate
async def main():
    async with ProcessSubstrate() as substrate:
        box = await substrate.create(SandboxSpec())
        seen = await box.run(Action("setsid sleep 1000 >&- 2>&- & echo $!"))
        print(box.pid, int(seen.text), flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


async def test_nothing_outlives_a_killed_host_and_its_directory_is_swept(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    pids = [int(word) for word in (await owner.stdout.readline()).split()]
    owner.kill()
    await owner.wait()
    start_s = time.monotonic()
    for pid in pids:
        assert await eventually_ended(pid)
    assert time.monotonic() - start_s < 2
    assert len(names(tmp_path)) == 1
    opener = "import asyncio; from dutyfree.substrates.process import ProcessSubstrate as P; asyncio.run(P().open())"
    await (await asyncio.create_subprocess_exec(sys.executable, "-c", opener, env=environment)).wait()
    (newcomer,) = names(tmp_path)
    assert names(tmp_path / newcomer) == []


async def test_a_live_owner_is_not_swept(box: ProcessSandbox) -> None:
    async with ProcessSubstrate():
        assert (await box.run(Action("true"))).ok


async def test_large_input_and_output_flow_through_each_other(box: ProcessSandbox) -> None:
    data = os.urandom(12 * MIB)
    seen = await box.run(Action(["cat"], stdin=data))
    assert hashlib.sha256(seen.stdout).digest() == hashlib.sha256(data).digest()


async def test_a_hundred_megabytes_from_one_action(box: ProcessSandbox) -> None:
    seen = await box.run(Action("head -c 100000000 /dev/zero", output_limit_bytes=200 * MIB))
    assert (len(seen.stdout), seen.truncated) == (100_000_000, False)


async def test_a_tree_goes_in_and_comes_out(box: ProcessSandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    local = tmp_path_factory.mktemp("local")
    source = local / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "big").write_bytes(os.urandom(5 * MIB + 7))
    (source / "sub" / ("long" * 50)).write_text("x")
    (source / "sub" / "link").symlink_to("../big")
    (source / "tool").write_text("#!/bin/sh\necho works\n")
    (source / "tool").chmod(0o755)
    home = (await box.run(Action("pwd"))).text.strip()
    await box.files.upload(source, f"{home}/in")
    assert (await box.run(Action("in/tool"))).stdout == b"works\n"
    await box.files.download(f"{home}/in", local / "target")
    assert sorted(path.relative_to(local / "target") for path in (local / "target").rglob("*")) == sorted(
        path.relative_to(source) for path in source.rglob("*")
    )
    assert (local / "target" / "big").read_bytes() == (source / "big").read_bytes()
    assert names(local) == ["source", "target"]


async def test_a_file_goes_in_and_comes_out(box: ProcessSandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    local = tmp_path_factory.mktemp("local")
    (local / "source").write_bytes(os.urandom(20 * MIB + 3))
    (local / "source").chmod(0o750)
    home = (await box.run(Action("pwd"))).text.strip()
    await box.files.upload(local / "source", f"{home}/file")
    assert (await box.files.stat(f"{home}/file")).mode == 0o750
    await box.files.download(f"{home}/file", local / "target")
    assert (local / "target").read_bytes() == (local / "source").read_bytes()


async def test_downloads_that_fail_leave_nothing_behind(
    box: ProcessSandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    local = tmp_path_factory.mktemp("local")
    home = (await box.run(Action("mkdir out; ln -s /etc out/etc; head -c 5000 /dev/zero > big; pwd"))).text.strip()
    for path in ("missing", "out", "big"):
        with pytest.raises(FileFailed):
            await box.files.download(f"{home}/{path}", local / "target", limit_bytes=4000)
    (local / "full").mkdir()
    (local / "full" / "mine").touch()
    await box.run(Action("mkdir empty"))
    with pytest.raises(InvalidRequest):
        await box.files.download(f"{home}/empty", local / "full")
    assert names(local) == ["full"]
    assert (await box.run(Action("true"))).ok


async def test_an_upload_that_is_cancelled_leaves_a_working_sandbox(
    box: ProcessSandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path_factory.mktemp("local") / "source"
    source.write_bytes(bytes(64 * MIB))
    uploading = asyncio.create_task(box.files.upload(source, "/dev/shm/never/there"))
    await asyncio.sleep(0.005)
    uploading.cancel()
    (outcome,) = await asyncio.gather(uploading, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert (await box.run(Action("rm -rf /dev/shm/never"))).ok


LEADER_ENDS = """
import ctypes, os, threading, time
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    ctypes.CDLL(None).pthread_exit(None)
time.sleep(1000)
"""


async def test_a_process_whose_first_thread_has_ended_is_killed_with_the_tree(substrate: ProcessSubstrate) -> None:
    box = await substrate.create(SandboxSpec())
    seen = await box.run(Action([sys.executable, "-c", LEADER_ENDS], timeout_s=1.0))
    assert seen.timed_out
    pid = int((await box.run(Action("cat pid"))).text)
    assert await is_gone(pid)
    await box.destroy()


async def is_gone(pid: int) -> bool:
    for _ in range(100):
        if not await asyncio.to_thread(Path(f"/proc/{pid}").exists):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_what_an_action_left_behind_outlives_hundreds_of_others(substrate: ProcessSubstrate) -> None:
    box = await substrate.create(SandboxSpec())
    await box.run(Action("(while sleep 0.05; do echo tick; done) & echo $! > ticker"))
    for _ in range(300):
        assert (await box.run(Action("echo x"))).ok
    assert (await box.run(Action("sleep 0.2; kill -0 $(cat ticker)"))).ok
    await box.destroy()


async def test_a_tree_deeper_than_python_can_recurse_is_removed(substrate: ProcessSubstrate) -> None:
    box = await substrate.create(SandboxSpec())
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"
    home = (await box.run(Action("pwd"))).text.strip()
    assert (await box.run(Action([sys.executable, "-c", deep]))).ok
    await box.destroy()
    assert not await asyncio.to_thread(Path(home).exists)


async def test_a_bystander_that_merely_mentions_a_sandbox_is_not_killed(substrate: ProcessSubstrate) -> None:
    box = await substrate.create(SandboxSpec())
    home = (await box.run(Action("pwd"))).text.strip()
    bystander = subprocess.Popen(["sleep", "60"], env={"OLDPWD": home})  # noqa: ASYNC220
    try:
        os.kill(box.pid, signal.SIGKILL)  # so that what it left behind is looked for
        await box.destroy()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def last_words(*messages: HostMessage) -> Fault | None:
    """What a guest complains of when it is sent these messages; None if it does not before it is asked to go."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(
            [native.guest_path(), "--fd", str(theirs.fileno())], pass_fds=(theirs.fileno(),), env={}
        ) as guest,
    ):
        theirs.close()
        ours.settimeout(5)
        ours.sendall(b"".join(message.encode() for message in (HostHello(VERSION), *messages)))
        ours.shutdown(socket.SHUT_WR)
        decoder, found = FrameDecoder(FROM_GUEST), []
        while data := ours.recv(65536):
            found += map(decode_guest, decoder.feed(data))
        guest.wait(5)
    return next((message for message in found if isinstance(message, Fault)), None)


@pytest.mark.parametrize("sizes", [[0], [2**63], [2**64 - 1], [2**63 - 1, 1], [2**63 - 2, 5]])
def test_the_guest_takes_no_credit_that_makes_no_sense(sizes: list[int]) -> None:
    run = Run(1, Mode.ARGV, (b"sleep", b"10"), env=(b"PATH=/bin:/usr/bin",), credit=10)
    fault = last_words(run, *(OutputCredit(1, size) for size in sizes))
    assert fault is not None
    assert b"credit" in fault.text.lower()
    assert last_words(run, OutputCredit(1, 2**63 - 11)) is None
