"""Reset, snapshot and fork of cells: what the conformance suite cannot see from the contract alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from dutyfree.errors import CapacityError, InvalidRequest, LinkFailed, SandboxGone, SandboxReset, SubstrateFailed
from dutyfree.images.trees.pack import pack
from dutyfree.model import Action, Image, Network, Resources, SandboxSpec, Writes
from dutyfree.substrates.cell import CellSubstrate, frozen, purity
from dutyfree.substrates.cell.chain import Chain
from dutyfree.substrates.cell.sandbox import MAX_LIVE_LAYERS, Cell, CellSandbox
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.wire.channel import Channel

UPPERS = {
    "tmpfs": SandboxSpec(),
    "disk": SandboxSpec(writes=Writes.DISK, resources=Resources(disk_bytes=None)),
    "limited disk": SandboxSpec(writes=Writes.DISK, resources=Resources(disk_bytes=256 * 2**20)),
}


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[CellSubstrate]:
    async with CellSubstrate(store=tmp_path / "store") as substrate:
        yield substrate


async def create(cells: CellSubstrate, spec: SandboxSpec | None = None) -> CellSandbox:
    box = await cells.create(spec or SandboxSpec())
    assert isinstance(box, CellSandbox)
    return box


async def text(box: object, line: str) -> str:
    seen = await box.run(Action(line))  # type: ignore[attr-defined]
    assert seen.exit_code == 0, seen.stderr
    return str(seen.text)


@pytest.mark.parametrize("upper", UPPERS)
async def test_a_snapshot_between_actions_moves_the_sandbox_to_another_cell(cells: CellSubstrate, upper: str) -> None:
    box = await create(cells, UPPERS[upper])
    await text(box, "echo old > /tmp/a; rm /etc/hostname || true; mkdir /srv/new")
    before = box.pid
    async with await box.snapshot() as snapshot:
        assert box.pid != before
        assert await text(box, "cat /tmp/a; ls -d /srv/new") == "old\n/srv/new\n"
        await text(box, "echo new > /tmp/a")
        other = await create(cells, replace(UPPERS[upper], image=snapshot.image))
        assert await text(other, "cat /tmp/a") == "old\n"
    await other.destroy()


@pytest.mark.parametrize("upper", UPPERS)
async def test_a_snapshot_while_something_runs_leaves_it_running(cells: CellSubstrate, upper: str) -> None:
    box = await create(cells, UPPERS[upper])
    session = await box.session()
    await session.run("i=0; while true; do i=$((i+1)); echo $i > /tmp/$((i % 100)); done & job=$!; cd /srv")
    await session.run("until [ -e /tmp/0 ]; do sleep 0.01; done")
    before = box.pid
    async with await box.snapshot() as snapshot:
        assert box.pid == before
        assert (await session.run("pwd; kill -0 $job && echo runs")).text == "/srv\nruns\n"
        other = await create(cells, replace(UPPERS[upper], image=snapshot.image))
        seen = sorted(int(each) for each in (await text(other, "cat /tmp/*")).split())
        # One moment: a hundred files in a row, but for the one that was being written.
        assert len(seen) >= 1
        assert seen[-1] - seen[0] <= 100
        assert len(seen) >= seen[-1] - seen[0] - 1


async def test_programs_with_threads_stand_still_and_go_on(cells: CellSubstrate) -> None:
    box = await create(cells)
    program = """
import subprocess, threading, time
def write(name):
    n = 0
    while True:
        n += 1
        open(f"/tmp/{name}", "w").write(str(n)); open(f"/tmp/{name}-after", "w").write(str(n))
for i in range(4): threading.Thread(target=write, args=(i,), daemon=True).start()
threading.Thread(target=lambda: subprocess.run(["sleep", "60"]), daemon=True).start()
time.sleep(60)
"""
    running = asyncio.create_task(box.run(Action(["python3", "-c", program])))
    await text(box, "for i in 0 1 2 3; do until [ -s /tmp/$i-after ]; do sleep 0.01; done; done")
    for _ in range(3):
        async with await box.snapshot() as snapshot:
            other = await create(cells, SandboxSpec(image=snapshot.image))
            for i in range(4):
                seen = (await text(other, f"cat /tmp/{i}; echo; cat /tmp/{i}-after")).split()
                assert len(seen) < 2 or int(seen[0]) - int(seen[1]) in (0, 1)
            await other.destroy()
    assert not running.done()
    running.cancel()


async def test_directories_that_the_host_s_masks_hide_are_the_sandbox_s_own_in_every_respect(
    cells: CellSubstrate,
) -> None:
    """As an ordinary user they are mounts of their own."""
    box = await create(cells)
    await text(box, "echo kept > /var/tmp/a; chmod 751 /; echo x > /var/tmp/gone")
    for _ in range(2):
        await (await box.snapshot()).discard()
        assert await text(box, "cat /var/tmp/a; stat -c %a / /var/tmp /sys") == "kept\n751\n1777\n555\n"
    [fork] = await box.fork(1)
    assert await text(fork, "cat /var/tmp/a; rm /var/tmp/gone; ls /var/tmp") == "kept\na\n"
    [deeper] = await fork.fork(1)
    assert await text(deeper, "ls /var/tmp; stat -c %a /") == "a\n751\n"


async def test_an_upper_on_disk_survives_its_cell_whatever_ends_that(cells: CellSubstrate) -> None:
    for _ in range(25):
        box = await create(cells, UPPERS["disk"])
        await text(box, "echo kept > /tmp/a")
        async with await box.snapshot():
            assert await text(box, "cat /tmp/a") == "kept\n"
        await box.destroy()


async def test_destroying_during_a_snapshot_leaves_nothing(cells: CellSubstrate) -> None:
    for upper in UPPERS.values():
        for pause_s in (0.0, 0.0003, 0.0006, 0.001, 0.0015, 0.002, 0.003):
            box = await create(cells, upper)
            await text(box, "echo x > /tmp/x")
            taking = asyncio.create_task(box.snapshot())
            await asyncio.sleep(pause_s)
            await box.destroy()
            [outcome] = await asyncio.gather(taking, return_exceptions=True)
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, SandboxGone | SubstrateFailed | LinkFailed), outcome
            else:
                await outcome.discard()
            assert not box.alive
    assert cells._alive == set()
    assert cells.frozen._layers == {}
    assert cells._spawner is not None
    assert cells._spawner._handles == {}


async def test_kinds_of_cells_that_differ_in_their_disk_are_not_taken_for_each_other(cells: CellSubstrate) -> None:
    for upper in (*UPPERS.values(), replace(UPPERS["limited disk"], resources=Resources(disk_bytes=64 * 2**20))):
        box = await create(cells, upper)
        await box.reset()
        await box.destroy()


async def test_what_another_cell_holds_open_cannot_change_a_snapshot(cells: CellSubstrate) -> None:
    """On the host's network, descriptors travel between cells."""
    passing = """
import array, os, socket, sys
there = socket.socket(socket.AF_UNIX)
name = "\\0dutyfree-test-" + sys.argv[2]
if sys.argv[1] == "take":
    there.bind(name); there.listen(); print("up", flush=True)
    got = there.accept()[0].recvmsg(1, 64)[1][0][2]
    fd = array.array("i", got[:4])[0]
    sys.stdin.readline(); os.pwrite(fd, b"TAMPERED", 0)
else:
    there.connect(name); fd = os.open("/tmp/a", os.O_RDWR)
    there.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
"""
    spec = SandboxSpec(network=Network.HOST)
    giver, taker = await create(cells, spec), await create(cells, spec)
    await text(giver, "echo original > /tmp/a")
    async with taker.stream(Action(["python3", "-c", passing, "take", taker.id])) as taking:
        async for chunk in taking:
            assert chunk.data == b"up\n"
            break
        await giver.run(Action(["python3", "-c", passing, "give", taker.id]))
        async with await giver.snapshot() as snapshot:
            await giver.destroy()
            await taking.write(b"now\n")
            assert (await taking.wait()).exit_code == 0
            other = await create(cells, SandboxSpec(image=snapshot.image))
            assert await text(other, "cat /tmp/a") == "original\n"


async def test_a_snapshot_of_what_will_not_stand_still_leaves_the_sandbox_alive(
    cells: CellSubstrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent that waits for a child of vfork, which waits for somebody to open its pipe."""
    monkeypatch.setattr("dutyfree.substrates.cell.standstill.STOP_TIMEOUT_S", 0.3)
    box = await create(cells)
    stuck = """
import os
os.mkfifo("/tmp/pipe")
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/tmp/pipe", os.O_WRONLY, 0)])
"""
    await box.run(Action("touch /tmp/x"))
    running = asyncio.create_task(box.run(Action(["python3", "-c", stuck])))
    await text(box, "until [ -p /tmp/pipe ]; do sleep 0.01; done; sleep 0.2")
    with pytest.raises(CapacityError, match="did not stop"):
        await box.snapshot()
    assert await text(box, "cat /tmp/pipe; echo alive") == "alive\n"
    assert (await running).exit_code == 0


async def test_orphans_stand_still_too(cells: CellSubstrate) -> None:
    box = await create(cells)
    chain = """
import os
n = 0
while n < 400:
    if os.fork():
        os._exit(0)
    n += 1
    open("/tmp/n", "w").write(str(n)); open("/tmp/m", "w").write(str(n))
"""
    await text(box, "echo 0 > /tmp/n; echo 0 > /tmp/m")
    await box.run(Action(["python3", "-c", chain]))
    for _ in range(5):
        async with await box.snapshot() as snapshot:
            other = await create(cells, SandboxSpec(image=snapshot.image))
            seen = (await text(other, "cat /tmp/n; echo; cat /tmp/m")).split()
            assert len(seen) < 2 or int(seen[0]) - int(seen[1]) in (0, 1)
            await other.destroy()


async def test_calls_during_a_snapshot_wait_for_it(cells: CellSubstrate) -> None:
    box = await create(cells)
    snapshot, *seen = await asyncio.gather(box.snapshot(), *(text(box, f"echo {i}") for i in range(8)))
    assert seen == [f"{i}\n" for i in range(8)]
    await snapshot.discard()


async def test_forks_of_forks_are_flattened_before_they_get_slow(cells: CellSubstrate) -> None:
    box = await create(cells)
    await text(box, "mkdir /tmp/gone; echo x > /tmp/gone/x")
    for i in range(MAX_LIVE_LAYERS + 3):
        await text(box, f"echo {i} > /tmp/{i}; echo {i} > /tmp/last; rm -rf /tmp/gone")
        await (await box.snapshot()).discard()
    mounts = await text(box, "head -1 /proc/self/mountinfo")
    assert mounts.count("/frozen/") + mounts.count("/upper") <= MAX_LIVE_LAYERS + 2
    assert (await text(box, "cat /tmp/last; ls /tmp | wc -l")).split() == [
        str(MAX_LIVE_LAYERS + 2),
        str(MAX_LIVE_LAYERS + 4),
    ]


@pytest.mark.parametrize("over_host", [True, False])
async def test_an_image_of_many_layers_is_flattened_once_and_stays_what_it_is(
    cells: CellSubstrate, over_host: bool
) -> None:
    """More layers than the kernel's one page of mount options has room for."""
    layers = []
    for number in range(60):
        with cells.store.staging() as scratch:
            tree = scratch / "tree"
            (tree / "data").mkdir(parents=True)
            (tree / "data" / str(number)).write_text(str(number))
            (tree / "data" / "last").write_text(str(number))
            if number in (20, 55):
                os.mknod(tree / "data" / str(number - 1), 0o020000, os.makedev(0, 0))
            layers.append(cells.store.add(tree, pack(tree, None, cells.store.ownership), "test").digest)
    spec = SandboxSpec(image=Image(tuple(layers), over_host=over_host, cwd="/"))
    for _ in range(2):
        box = await create(cells, spec)
        root = Path(f"/proc/{box.pid}/root")
        assert {int(path.name) for path in (root / "data").iterdir() if path.name != "last"} == {*range(60)} - {19, 54}
        assert (root / "data/last").read_text() == "59"
        assert (root / "usr").exists() is over_host
        await box.destroy()
    assert [stage.title for stage in cells.store.stages()] == ["52 merged layers"]
    assert cells.store.check(deep=True) == []


async def test_what_nobody_refers_to_is_given_back(cells: CellSubstrate) -> None:
    box = await create(cells)
    await text(box, "echo x > /tmp/x")
    snapshot = await box.snapshot()
    children = await box.fork(3)
    await snapshot.discard()
    for each in (*children, box):
        await each.destroy()
    with pytest.raises(InvalidRequest, match="not kept"):
        await cells.create(SandboxSpec(image=snapshot.image))
    assert cells.frozen._layers == {}
    for _ in range(100):
        if not os.listdir(cells.frozen.host_path("/frozen")):  # noqa: PTH208
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("a frozen layer is still mounted")


async def test_snapshots_are_bounded(cells: CellSubstrate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MAX_FROZEN", 2)
    box = await create(cells)
    kept = [await box.snapshot(), await box.snapshot()]
    with pytest.raises(CapacityError, match="kept already"):
        await box.snapshot()
    assert await text(box, "echo fine") == "fine\n"
    for each in kept:
        await each.discard()


async def test_a_reset_that_is_not_clean_destroys_the_sandbox(
    cells: CellSubstrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contamination is real: something runs in the new cell before it is looked at."""
    box = await create(cells)
    inspect = purity.inspect

    def contaminated(pid: int, *, own_network: bool, upper: Path | None) -> purity.Condition:
        Path(f"/proc/{pid}/root/tmp/left-over").write_text("x" * 10000)
        return inspect(pid, own_network=own_network, upper=upper)

    monkeypatch.setattr(purity, "inspect", contaminated)
    with pytest.raises(SubstrateFailed, match="not clean after its reset: written"):
        await box.reset()
    assert not box.alive
    with pytest.raises(SandboxGone):
        await box.run(Action("true"))


@pytest.mark.parametrize("upper", UPPERS)
async def test_the_purity_check_passes_for_every_kind_of_upper(cells: CellSubstrate, upper: str) -> None:
    box = await create(cells, UPPERS[upper])
    fresh = await text(box, "ls -A /tmp /dev/shm /srv")
    for _ in range(5):
        await text(box, "echo x > /tmp/x; echo y > /dev/shm/y; mkdir -p /srv/a/b/c; (sleep 100 &) ; true")
        await box.reset()
        assert await text(box, "ls -A /tmp /dev/shm /srv") == fresh


async def test_a_call_under_way_learns_of_the_reset_and_the_sandbox_lives(cells: CellSubstrate) -> None:
    box = await create(cells)
    session = await box.session()
    running = asyncio.create_task(box.run(Action("sleep 60")))
    await asyncio.sleep(0.1)
    await box.reset()
    with pytest.raises(SandboxReset):
        await running
    assert not session.alive
    assert await text(box, "echo alive") == "alive\n"


async def test_destroying_during_a_reset_leaves_nothing(cells: CellSubstrate) -> None:
    for pause_s in (0.0, 0.0005, 0.001, 0.002):
        box = await create(cells)
        reset = asyncio.create_task(box.reset())
        await asyncio.sleep(pause_s)
        await box.destroy()
        outcome = (await asyncio.gather(reset, return_exceptions=True))[0]
        assert outcome is None or isinstance(outcome, SandboxGone | SubstrateFailed), outcome
        assert not box.alive
    assert cells._alive == set()


async def test_a_snapshot_cancelled_half_way_destroys_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled after the old cell was killed, and before the new one is there."""
    async with GuardedSubstrate(cells := CellSubstrate(store=tmp_path / "store")) as substrate:
        box = await substrate.create(SandboxSpec())
        await text(box, "true")
        is_spawning = asyncio.Event()

        async def never(*_: object) -> Cell:
            is_spawning.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(cells, "spawn", never)
        work = asyncio.create_task(box.snapshot())
        await is_spawning.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not box.alive
        await box.destroy()
        assert not cells._alive


async def test_a_cancelled_snapshot_or_reset_leaves_nothing_half_done(cells: CellSubstrate) -> None:
    for method in ("snapshot", "reset"):
        for pause_s in (0.0, 0.0005, 0.001, 0.002, 0.004):
            box = await create(cells)
            await text(box, "echo x > /tmp/x")
            work = asyncio.create_task(getattr(box, method)())
            await asyncio.sleep(pause_s)
            work.cancel()
            [outcome] = await asyncio.gather(work, return_exceptions=True)
            if box.alive:
                assert (await box.run(Action("echo works"))).text == "works\n"
            if method == "snapshot" and not isinstance(outcome, BaseException):
                await outcome.discard()
            await box.destroy()
    assert cells.frozen._layers == {}


async def test_a_sandbox_whose_guest_was_killed_cannot_be_copied_or_reset(cells: CellSubstrate) -> None:
    box = await create(cells)
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises((LinkFailed, SubstrateFailed, SandboxGone)):
        await box.run(Action("true"))
    for method in (box.reset, box.snapshot):
        with pytest.raises(SandboxGone):
            await method()


async def test_a_fork_that_cannot_be_made_takes_the_others_along(cells: CellSubstrate) -> None:
    box = await create(cells)
    made = 0
    real = cells.spawn

    async def failing(spec: SandboxSpec, chain: Chain, channel: Channel, theirs: socket.socket) -> Cell:
        nonlocal made
        made += 1
        if made == 6:
            channel.close()
            theirs.close()
            raise CapacityError("no room for another cell")
        return await real(spec, chain, channel, theirs)

    cells.spawn = failing  # type: ignore[method-assign]
    with pytest.raises(CapacityError):
        await box.fork(8)
    assert cells._alive == {box}


async def test_an_unknown_layer_is_named(cells: CellSubstrate) -> None:
    with pytest.raises(InvalidRequest, match="live:elsewhere-1"):
        await cells.create(SandboxSpec(image=Image(("live:elsewhere-1",))))
    missing = "sha256:" + "0" * 64
    with pytest.raises(InvalidRequest, match="0000"):
        await cells.create(SandboxSpec(image=Image((missing,), over_host=False)))
