"""gVisor for real: what a sandbox is made of, and what is left when a part of it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from dutyfree import claims
from dutyfree.errors import (
    InfraFailed,
    InvalidRequest,
    SandboxGone,
    SubstrateFailed,
    SubstrateUnavailable,
    Unsupported,
)
from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Action, Capability, Image, Network, Phase, Resources, SandboxSpec, Writes
from dutyfree.native import guest_path
from dutyfree.substrates.engine import EngineSandbox
from dutyfree.substrates.gvisor import GVisorSubstrate
from dutyfree.substrates.gvisor.substrate import find_program
from dutyfree.trace import SpanRecorder
from support.engines import engine, engine_variables

MIB = 1024 * 1024
SANDBOXES = 3
CLEAN_WITHIN_S = 2.0
HOST = f"""
import asyncio
from support.engines import engine
from dutyfree.model import Action, SandboxSpec, Writes

async def main():
    async with engine("gvisor") as substrate:
        specs = [SandboxSpec(writes=Writes.DISK if number == 0 else Writes.MEMORY) for number in range({SANDBOXES})]
        boxes = [await substrate.create(spec) for spec in specs]
        for box in boxes:
            await box.run(Action("echo x > /tmp/x; setsid sleep 1000 > /dev/null 2>&1 &"))
        snapshot = await boxes[0].snapshot()
        print("ready", flush=True)
        await asyncio.gather(*(box.run(Action("sleep 1000")) for box in boxes))

asyncio.run(main())
"""


@pytest_asyncio.fixture
async def substrate() -> AsyncIterator[GVisorSubstrate]:
    async with opened() as found:
        yield found


def opened(**options: object) -> GVisorSubstrate:
    made = engine("gvisor", **options)
    assert isinstance(made, GVisorSubstrate)
    return made


@pytest.fixture(autouse=True, scope="module")
def _needs_gvisor() -> None:
    async def attempt() -> None:
        async with opened() as substrate:
            substrate.image_for(SandboxSpec())

    try:
        asyncio.run(attempt())
    except (SubstrateUnavailable, InvalidRequest) as error:
        pytest.skip(f"gVisor: {error}")


def remains_of(pid: int) -> list[str]:
    """What there is on this machine that bears the claim of process `pid`."""
    marker = f"gvisor/{pid}-"
    left = [str(path) for path in Path("/run/dutyfree/gvisor").glob(f"{pid}-*")]
    left += [path for path, _, _ in os.walk("/sys/fs/cgroup") if f"dutyfree-gvisor-{pid}-" in path]
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if marker in line]
    return left + [f"process {pid}" for pid in marked(marker)]


def remains_after(within_s: float, pid: int) -> list[str]:
    """What is still there when it was given time to go."""
    deadline_s = time.monotonic() + within_s
    while (left := remains_of(pid)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def is_dead_soon(pid: int) -> bool:
    """Whether its claim is seen to be dead: a killed process takes a moment to die."""
    deadline_s = time.monotonic() + 5.0
    while not (dead := any(path.name.startswith(f"{pid}-") for path in claims.dead("gvisor"))):
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.02)
    return dead


def keepers_of(pid: int) -> list[int]:
    return [each for each in marked(f"gvisor/{pid}-") if b"keeper.py" in read(f"/proc/{each}/cmdline")]


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def marked(marker: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "cmdline").read_bytes():
                yield int(process.name)
        except OSError:
            continue


async def begin(substrate: GVisorSubstrate, spec: SandboxSpec | None = None) -> EngineSandbox:
    box = await substrate.create(spec or SandboxSpec())
    assert isinstance(box, EngineSandbox)
    return box


async def test_a_sandbox_is_a_kernel_of_its_own_in_a_process_without_rights(substrate: GVisorSubstrate) -> None:
    async with await begin(substrate) as box:
        seen = await box.run(Action(["cat", "/proc/version"]))
        assert seen.text != read("/proc/version").decode()
        assert box.pid is not None
        status = read(f"/proc/{box.pid}/status").decode()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        assert all(int(uid) >= SUBORDINATE_IDS for uid in uids)
        assert b"runsc" in read(f"/proc/{box.pid}/cmdline")


async def test_files_of_the_image_belong_to_the_sandboxs_own_root(substrate: GVisorSubstrate) -> None:
    async with await begin(substrate) as box:
        assert (await box.files.stat("/etc/passwd")).uid == 0
        assert (await box.run(Action("chown 1000:1000 /etc/passwd && stat -c %u:%g /etc/passwd"))).text == "1000:1000\n"


async def test_creation_is_told_in_gvisors_own_steps(substrate: GVisorSubstrate) -> None:
    recorder = SpanRecorder()
    async with await substrate.create(SandboxSpec(), recorder):
        steps = {(span.phase, span.name) for span in recorder.spans}
    assert {(Phase.CREATE, "layers"), (Phase.CREATE, "mount"), (Phase.CREATE, "run")} <= steps
    assert (Phase.READY, "handshake") in steps


async def test_a_careful_umask_changes_nothing() -> None:
    before = os.umask(0o077)
    try:
        async with opened() as substrate, await substrate.create(SandboxSpec()) as box:
            assert (await box.run(Action("echo x > /tmp/x; cat /tmp/x"))).text == "x\n"
    finally:
        os.umask(before)


@pytest.mark.parametrize("path", ["guest", "exec"])
async def test_a_killed_gvisor_is_an_infrastructure_failure(path: str) -> None:
    async with opened(path=path) as substrate:
        box = await begin(substrate)
        action = asyncio.create_task(box.run(Action("sleep 1000")))
        await asyncio.sleep(0.3)
        assert box.pid is not None
        os.kill(box.pid, signal.SIGKILL)
        start_s = time.monotonic()
        with pytest.raises(InfraFailed):
            await action
        assert time.monotonic() - start_s < 5.0
        with pytest.raises((SandboxGone, InfraFailed)):
            await box.run(Action(["true"]))
        await box.destroy()


async def test_a_killed_keeper_is_an_infrastructure_failure() -> None:
    substrate = opened()
    await substrate.open()
    box = await begin(substrate)
    action = asyncio.create_task(box.run(Action("sleep 1000")))
    await asyncio.sleep(0.2)
    keepers = keepers_of(os.getpid())
    assert len(keepers) == 1
    os.kill(keepers[0], signal.SIGKILL)
    with pytest.raises(InfraFailed):
        await asyncio.wait_for(action, 5.0)
    with pytest.raises(SubstrateFailed):
        await substrate.create(SandboxSpec())
    await substrate.close()
    assert remains_of(os.getpid()) == []


async def test_nothing_outlives_a_killed_host_and_no_other_is_touched(substrate: GVisorSubstrate) -> None:
    bystander = await begin(substrate)
    environment = {**os.environ, **engine_variables(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert host.stdout is not None
        assert await asyncio.wait_for(host.stdout.readline(), 60) == b"ready\n"
        assert len([each for each in remains_of(host.pid) if each.startswith("process")]) > SANDBOXES
    finally:
        host.kill()
        await host.wait()
    assert await asyncio.to_thread(remains_after, CLEAN_WITHIN_S, host.pid) == []
    async with opened():
        assert (await bystander.run(Action(["echo", "untouched"]))).text == "untouched\n"


async def test_what_is_mounted_survives_the_clean_up_after_a_killed_host(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("kept")
    (data / "file").chmod(0o666)
    program = f"""
import asyncio
from support.engines import engine
from dutyfree.model import Mount, SandboxSpec

async def main():
    async with engine("gvisor") as substrate:
        mounts = (Mount({str(data)!r}, "/data"), Mount({str(data / "file")!r}, "/file"))
        box = await substrate.create(SandboxSpec(mounts=mounts))
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
    environment = {**os.environ, **engine_variables(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert host.stdout is not None
        assert await asyncio.wait_for(host.stdout.readline(), 60) == b"ready\n"
    finally:
        host.kill()
        await host.wait()
    assert await asyncio.to_thread(remains_after, CLEAN_WITHIN_S, host.pid) == []
    assert (data / "file").read_text() == "kept"


@pytest.mark.alone  # any other substrate of the kind that opens meanwhile cleans up, too
async def test_the_next_start_removes_what_a_killed_keeper_could_not(substrate: GVisorSubstrate) -> None:
    environment = {**os.environ, **engine_variables(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert host.stdout is not None
    assert await asyncio.wait_for(host.stdout.readline(), 60) == b"ready\n"
    for pid in (*keepers_of(host.pid), host.pid):
        os.kill(pid, signal.SIGKILL)
    await host.wait()
    assert await asyncio.to_thread(is_dead_soon, host.pid)
    async with opened():
        assert remains_of(host.pid) == []


async def test_an_image_without_a_shell(substrate: GVisorSubstrate, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    program = tmp_path / "tree" / "program"
    program.write_bytes(guest_path().read_bytes())
    program.chmod(0o755)
    os.chown(program, SUBORDINATE_IDS, SUBORDINATE_IDS)
    layer = substrate.store.adopt(tmp_path / "tree", "built")
    image = Image((layer.digest,), over_host=False, cwd="/")
    async with await begin(substrate, SandboxSpec(image=image)) as box:
        expected = subprocess.run([guest_path()], capture_output=True).returncode  # noqa: ASYNC221
        assert (await box.run(Action(["/program"]))).exit_code == expected != 0
        assert "program" in [entry.name for entry in await box.files.list("/")]
        assert (await box.run(Action(["/bin/sh"]))).exit_code == 127


async def test_memory_past_the_limit_is_never_an_observation(substrate: GVisorSubstrate) -> None:
    box = await begin(substrate, SandboxSpec(Resources(memory_bytes=192 * MIB)))
    assert Capability.LIMIT_MEMORY in {each.what for each in box.unenforced}
    with pytest.raises(InfraFailed):
        await box.run(Action(["python3", "-c", "x = bytearray(1 << 30)"], timeout_s=30))


async def test_uppers_on_disk_say_that_they_are_not_limited(substrate: GVisorSubstrate) -> None:
    async with await begin(substrate, SandboxSpec(writes=Writes.DISK)) as box:
        assert Capability.LIMIT_DISK in {each.what for each in box.unenforced}
        assert (await box.run(Action("echo kept > /root/kept && cat /root/kept"))).text == "kept\n"


async def test_the_hosts_network_and_its_name_servers(substrate: GVisorSubstrate) -> None:
    async with await begin(substrate, SandboxSpec(network=Network.HOST)) as box:
        seen = await box.run(Action(["cat", "/etc/resolv.conf"]))
        assert seen.stdout == read("/etc/resolv.conf")


async def test_what_it_cannot_start_from(substrate: GVisorSubstrate) -> None:
    with pytest.raises(Unsupported):
        await substrate.create(SandboxSpec(image=Image(reference="debian", over_host=False)))


async def test_what_is_missing_is_said_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DUTYFREE_RUNSC", raising=False)
    with pytest.raises(SubstrateUnavailable) as caught:
        find_program(None)
    assert caught.value.hint is not None


@pytest.mark.parametrize("options", [{"platform": "nonsense"}, {"runsc": "/bin/false"}])
async def test_a_gvisor_that_runs_nothing_is_told_before_anything_is_made(options: dict[str, str]) -> None:
    with pytest.raises(SubstrateUnavailable, match="runs no sandbox on"):
        await opened(**options).open()
    assert remains_of(os.getpid()) == []


async def test_the_guest_path_is_faster_than_one_call_for_each_action() -> None:
    times_s: dict[str, list[float]] = {"guest": [], "exec": []}
    async with opened(path="guest") as guest, opened(path="exec") as through_exec:
        boxes = {"guest": await begin(guest), "exec": await begin(through_exec)}
        for _ in range(15):
            for path, box in boxes.items():
                start_s = time.monotonic()
                assert (await box.run(Action(["true"]))).ok
                times_s[path].append(time.monotonic() - start_s)
    quick_ms = {path: statistics.quantiles(times, n=4)[0] * 1e3 for path, times in times_s.items()}
    print(f"the first quartile of an action, in ms: {quick_ms}")
    assert quick_ms["exec"] >= 1.8 * quick_ms["guest"]
