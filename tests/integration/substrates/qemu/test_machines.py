"""Real machines: started from their kernel, restored, multiplied, killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dutyfree import claims
from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, InvalidRequest, SandboxGone, SubstrateUnavailable, Unsupported
from dutyfree.model import Action, Image, Phase, Resources, SandboxSpec, Span
from dutyfree.model.limits import MIB
from dutyfree.substrates.engine import EngineSandbox
from dutyfree.substrates.qemu import MicroVMSubstrate
from dutyfree.substrates.qemu.plan import AGAIN
from support.engines import OTHER_MACHINES, engine
from support.repository import ROOT

pytestmark = OTHER_MACHINES
CLONES = 20
FASTER = 8
SMALL = SandboxSpec(Resources(memory_bytes=256 * MIB))
WHO = "cat /tmp/kept; uname -n; cat /etc/machine-id; od -An -tx1 -N16 /dev/urandom | tr -d ' '; date +%s.%N"


async def opened(**options: object) -> MicroVMSubstrate:
    substrate = engine("microvm", **options)
    assert isinstance(substrate, MicroVMSubstrate)
    try:
        await substrate.open()
        substrate.image_for(SandboxSpec())
    except (SubstrateUnavailable, InvalidRequest) as error:
        await substrate.close()
        pytest.skip(f"microvm: {error}")
    return substrate


async def first_observation_s(substrate: MicroVMSubstrate, spans: list[Span]) -> float:
    start_s = time.monotonic()
    box = await substrate.create(SandboxSpec(), spans.append)
    assert (await box.run(Action(["echo", "hi"]))).stdout == b"hi\n"
    took_s = time.monotonic() - start_s
    await box.destroy()
    return took_s


@pytest.mark.timeout(300)
async def test_restoring_is_many_times_faster_than_starting() -> None:
    cold, warm = await opened(boot="cold"), await opened()
    try:
        await first_observation_s(warm, [])  # the image's device and the saved machine are made once
        boots, restores, boot_spans, restore_spans = [], [], [], []
        for _ in range(2):
            boots.append(await first_observation_s(cold, boot_spans))
            restores += [await first_observation_s(warm, restore_spans) for _ in range(2)]
        print(f"boots {boots}, restores {restores}, {warm.accelerator}")
    finally:
        await cold.close()
        await warm.close()
    assert min(boots) >= FASTER * min(restores)
    for spans, name in ((boot_spans, "boot"), (restore_spans, "restore")):
        assert name in {span.name for span in spans if span.phase is Phase.CREATE}
        assert "handshake" in {span.name for span in spans if span.phase is Phase.READY}


@pytest.mark.timeout(300)
async def test_clones_of_one_snapshot_are_distinct() -> None:
    substrate = await opened()
    try:
        box = await substrate.create(SMALL)
        assert (await box.run(Action("echo kept > /tmp/kept; (sleep 600 &)"))).ok
        family = [box, *await box.fork(CLONES)]
        assert all(each.alive for each in family)
        found = []
        for each in family:
            before_s = time.time()
            kept, *rest, clock_s = (await each.run(Action(WHO))).text.split()
            assert kept == "kept"
            assert before_s - 1 < float(clock_s) < time.time() + 1
            found.append(rest)
        for what, values in zip(("hostname", "machine id", "random numbers"), zip(*found, strict=True), strict=True):
            assert len(set(values)) == CLONES + 1, f"two machines have the same {what}: {values}"
        jobs = await asyncio.gather(*(each.run(Action("pgrep -c sleep")) for each in (box, family[-1])))
        assert [seen.text for seen in jobs] == ["1\n", "0\n"], "processes stay where they are"
        assert all(each.alive for each in family)
    finally:
        await substrate.close()


@pytest.mark.parametrize("boot", ["restore", "cold"])
async def test_a_snapshot_carries_files_from_either_kind_of_machine_and_back_again(boot: str) -> None:
    substrate = await opened(boot=boot)
    try:
        box: Sandbox = await substrate.create(SMALL)
        for generation in range(3):
            await box.run(Action(f"echo {generation} > /tmp/{generation}; head -c 3000000 /dev/urandom > /tmp/random"))
            digest = (await box.run(Action("cat /tmp/? ; sha256sum < /tmp/random"))).stdout
            (child,) = await box.fork(1)
            assert (await child.run(Action("cat /tmp/? ; sha256sum < /tmp/random"))).stdout == digest
            await box.destroy()
            box = child
    finally:
        await substrate.close()


async def test_later_sandboxes_are_clones_with_clean_files_and_their_own_identity() -> None:
    substrate = await opened()
    try:
        boxes = []
        async with asyncio.timeout(60):
            while len([box for box in boxes if is_clone(box)]) < 2:
                boxes.append(await substrate.create(SMALL))
                assert (await boxes[-1].run(Action("ls -A /tmp; echo kept > /tmp/kept"))).stdout == b""
        found = [(await box.run(Action(WHO))).text.split() for box in boxes]
        assert not is_clone(boxes[0]), "the first one pays nothing for others"
        for values in zip(*found, strict=True):
            assert values == ("kept",) * len(boxes) or len(set(values)) == len(boxes), values
        clone = boxes.pop()
        (child,) = await clone.fork(1)
        assert (await child.run(Action("cat /tmp/kept"))).stdout == b"kept\n"
        await clone.reset()
        assert (await clone.run(Action("ls -A /tmp"))).stdout == b""
    finally:
        await substrate.close()


def is_clone(box: Sandbox) -> bool:
    return box.body._vm.first_message == AGAIN  # type: ignore[attr-defined]


async def test_a_snapshot_keeps_its_bounds_and_ends_with_discard() -> None:
    substrate = await opened()
    try:
        box = await substrate.create(SMALL)
        snapshot = await box.snapshot()
        with pytest.raises(Unsupported, match="bounds"):
            await substrate.create(SandboxSpec(Resources(memory_bytes=512 * MIB), image=snapshot.image))
        await box.destroy()
        again = await substrate.create(SandboxSpec(SMALL.resources, image=snapshot.image))
        assert (await again.run(Action(["cat", "/etc/os-release"]))).ok, "the first machine is not needed"
        await again.destroy()
        await snapshot.discard()
        with pytest.raises(InvalidRequest, match="live:"):
            await substrate.create(SandboxSpec(SMALL.resources, image=snapshot.image))
    finally:
        await substrate.close()


@pytest.mark.timeout(120)
async def test_machines_that_talk_all_the_time_can_be_multiplied() -> None:
    substrate = await opened()
    try:
        box = await substrate.create(SMALL)
        said = os.urandom(2 * MIB)
        talk = asyncio.create_task(box.run(Action(["cat"], stdin=said, output_limit_bytes=3 * MIB)))
        noise = asyncio.create_task(box.run(Action("seq 1 300000; while sleep 0.01; do echo x; done", timeout_s=5)))
        write = asyncio.create_task(box.files.write("/tmp/large", said))
        for _ in range(3):
            await asyncio.sleep(0.2)
            (child,) = await box.fork(1)
            assert (await child.run(Action(["cat"], stdin=said[:MIB]))).stdout == said[:MIB]
            assert set((await child.run(Action("ls -A /tmp"))).text.split()) <= {"large"}
            await child.destroy()
        assert (await talk).stdout == said
        assert (await noise).stdout.startswith(b"1\n2\n3\n")
        await write
        assert await box.files.read("/tmp/large") == said
    finally:
        await substrate.close()


async def test_what_lies_where_the_guest_looks_does_not_hold_it_up() -> None:
    substrate = await opened()
    try:
        box = await substrate.create(SMALL)
        traps = "/sys/fs/cgroup/sandbox/memory.events /sys/fs/cgroup/sandbox/pids.events /etc/machine-id"
        lay = f"mount -t tmpfs x /sys/fs/cgroup && mkdir /sys/fs/cgroup/sandbox && rm -f {traps} && mkfifo {traps}"
        laid = await box.run(Action(lay))
        assert laid.ok, laid.stderr
        assert (await box.run(Action("false"))).exit_code == 1
        (child,) = await box.fork(1)
        assert (await child.run(Action("false"))).exit_code == 1
        assert (await child.run(Action("test -p /etc/machine-id"))).ok
        assert (await box.run(Action("rm /dev/urandom && mkfifo /dev/urandom"))).ok
        with pytest.raises(InfraFailed, match="random"):
            await box.fork(1)
        assert (await box.run(Action("true"))).ok
    finally:
        await substrate.close()


REFUSED = """
import os, signal
children = []
try:
    while True:
        child = os.fork()
        if not child: signal.pause()
        children.append(child)
except OSError:
    for child in children: os.kill(child, 9)
"""


async def test_a_bound_that_was_met_is_no_reason_of_later_failures() -> None:
    substrate = await opened()
    try:
        box = await substrate.create(SandboxSpec(Resources(memory_bytes=256 * MIB, pids=12)))
        met = await box.run(Action(["python3", "-c", REFUSED]))
        assert met.ok, met.stderr
        assert not (await box.run(Action("false"))).pids_limited
        seen = await box.run(Action(["python3", "-c", f"{REFUSED}\nraise SystemExit(1)"]))
        assert seen.pids_limited
        assert not (await box.run(Action("false"))).pids_limited
    finally:
        await substrate.close()


async def test_machines_that_wait_in_the_pool_are_used_and_end_with_the_substrate() -> None:
    substrate = await opened(standby=2)
    try:
        boxes = [await substrate.create(SMALL) for _ in range(2)]
        await asyncio.wait_for(asyncio.to_thread(until, lambda: len(machines()) == 4), 60)
        waiting = machines() - {pid_of(box) for box in boxes}
        boxes.append(await substrate.create(SMALL))
        assert pid_of(boxes[-1]) in waiting
        names = [(await box.run(Action(["uname", "-n"]))).text for box in boxes]
        assert len(set(names)) == 3
    finally:
        await substrate.close()
    assert machines() == set()


async def test_an_image_with_nothing_in_it_works(tmp_path: Path) -> None:
    substrate = await opened()
    try:
        (tmp_path / "empty").mkdir()
        layer = await asyncio.to_thread(substrate.store.adopt, tmp_path / "empty", "test")
        image = Image((layer.digest,), over_host=False, cwd="/")
        box = await substrate.create(SandboxSpec(SMALL.resources, image=image))
        await box.files.write("/deep/file", b"content")
        assert await box.files.read("/deep/file") == b"content"
        assert (await box.run(Action(["/bin/true"]))).exit_code == 127
    finally:
        await substrate.close()


async def test_qemu_killed_in_the_middle_of_an_action_is_an_infrastructure_failure() -> None:
    substrate = await opened()
    try:
        box = await substrate.create(SMALL)
        action = asyncio.create_task(box.run(Action("sleep 100")))
        await asyncio.sleep(0.5)
        os.kill(pid_of(box), signal.SIGKILL)
        start_s = time.monotonic()
        with pytest.raises(InfraFailed):
            await asyncio.wait_for(action, 5)
        assert time.monotonic() - start_s < 5
        with pytest.raises(SandboxGone):
            await box.run(Action(["true"]))
        with pytest.raises((SandboxGone, InfraFailed)):
            await box.snapshot()
    finally:
        await substrate.close()


HOST = f"""
import asyncio, sys
sys.path.append({str(ROOT / "tests")!r})
from dutyfree.model import Action, Resources, SandboxSpec
from support.engines import engine

async def main():
    async with engine("microvm", standby=1) as substrate:
        boxes = [await substrate.create(SandboxSpec(Resources(memory_bytes=256 * 1024**2))) for _ in range(2)]
        kept = await boxes[0].snapshot()
        print("ready", flush=True)
        await asyncio.gather(*(box.run(Action("sleep 1000")) for box in boxes))

asyncio.run(main())
"""


@pytest.mark.alone  # any other substrate of the kind that opens meanwhile cleans up, too
async def test_machines_die_with_their_host_and_the_next_one_cleans_up() -> None:
    substrate = await opened()
    process = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        mine = machines(process.pid)
        assert len(mine) >= 2
        process.kill()
        await asyncio.to_thread(process.wait, 10)
        process.stdout.close()
        await asyncio.wait_for(asyncio.to_thread(until, lambda: not any(map(is_alive, mine))), 5)

        def left() -> list[Path]:
            return [path for path in claims.dead("microvm") if path.name.startswith(f"{process.pid}-")]

        # One that was being waked up when they were counted dies a moment later, and holds the claim until then.
        await asyncio.wait_for(asyncio.to_thread(until, left), 5)
        assert len(found := left()) == 1
        another = await opened()
        assert not found[0].exists()
        assert not list(another._opened().own.parent.glob(f"{process.pid}-*"))
        await another.close()
    finally:
        process.kill()
        await substrate.close()


def pid_of(box: Sandbox) -> int:
    assert isinstance(box, EngineSandbox)
    assert box.pid is not None
    return box.pid


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether it runs: when the dead are buried that were left to the machine's first process, is up to that one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def machines(host: int | None = None) -> set[int]:
    """The processes of machines that a process, by default this one, has started."""
    found = set()
    for path in Path(f"/proc/{host or os.getpid()}/task").glob("*/children"):
        for pid in path.read_text().split():
            command = Path(f"/proc/{pid}/cmdline")
            if command.exists() and command.read_bytes().startswith(b"qemu-system"):
                found.add(int(pid))
    return found
