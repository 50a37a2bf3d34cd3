"""Real machines: booted, restored, killed, cut off, and left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SubstrateUnavailable, Unsupported
from dutyfree.model import Action, Network, Phase, SandboxSpec, Span
from dutyfree.substrates.vm import VMSubstrate
from support.engines import OTHER_MACHINES
from support.machines import SMALL, machines
from support.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), OTHER_MACHINES]


@pytest.fixture
async def restoring() -> AsyncIterator[VMSubstrate]:
    substrate = machines(boot="restore")
    try:
        await substrate.open()
    except SubstrateUnavailable as error:
        pytest.skip(f"machines: {error}")
    yield substrate
    await substrate.close()


async def said(box: Sandbox, line: str) -> str:
    seen = await box.run(Action(line))
    assert seen.ok, seen.stderr
    return seen.text.strip()


async def test_a_machine_boots_as_a_cloud_gives_it() -> None:
    spans: list[Span] = []
    try:
        substrate = await machines(path="exec", connection_reuse=False).__aenter__()
    except SubstrateUnavailable as error:
        pytest.skip(f"machines: {error}")
    try:
        box = await substrate.create(SandboxSpec(SMALL.resources, hostname="first"), spans.append)
        assert await said(box, "hostname") == "first"
        assert await said(box, "cat /proc/1/comm") == "systemd"
        assert await said(box, "systemctl is-active ssh systemd-networkd") == "active\nactive"
        assert abs(float(await said(box, "date +%s.%N")) - time.time()) < 5
        total_kib = int((await said(box, "df -Pk / | tail -1")).split()[1])
        assert 256 * 1024 < total_kib < 1024 * 1024
        steps = [(span.phase, span.name) for span in spans if span.name and span.phase in (Phase.CREATE, Phase.READY)]
        assert steps == [
            (Phase.CREATE, "disk"),
            (Phase.CREATE, "boot"),
            (Phase.READY, "guest"),
            (Phase.READY, "handshake"),
        ]
        assert substrate.accelerator in ("kvm", "tcg")
        process = Path("/proc", str(box.pid))  # type: ignore[attr-defined]
        assert "\nSeccomp:\t2\n" in (process / "status").read_text()
        environment = (process / "environ").read_bytes().split(b"\0")
        assert {each.partition(b"=")[0] for each in environment} <= {b"PATH", b"PWD", b""}
    finally:
        await substrate.close()


async def test_machines_that_go_on_from_one_moment_are_not_the_same(restoring: VMSubstrate) -> None:
    specs = [SandboxSpec(SMALL.resources, hostname=f"clone{number}") for number in range(3)]
    boxes = [await restoring.create(spec) for spec in specs]
    keys = [box.body._node.login.key for box in boxes]  # type: ignore[attr-defined]
    assert len({*keys}) == len(boxes), "whoever removes the saved machine takes its key away from those that run"
    line = "hostname; cat /etc/machine-id; od -An -tx8 -N16 /dev/urandom; cat /proc/sys/kernel/random/uuid"
    told = [(await said(box, line)).splitlines() for box in boxes]
    for same_question in zip(*told, strict=True):
        assert len(set(same_question)) == len(boxes), same_question
    assert [answer[0] for answer in told] == ["clone0", "clone1", "clone2"]
    for box in boxes:
        before_s = time.time()
        seen_s = float(await said(box, "date +%s.%N"))
        assert before_s - 3 < seen_s < time.time() + 3  # an emulated machine takes seconds to answer
    before_s = time.monotonic(), float(await said(boxes[0], "date +%s.%N"))
    await asyncio.sleep(3)
    after_s = time.monotonic(), float(await said(boxes[0], "date +%s.%N"))
    assert after_s[1] - before_s[1] == pytest.approx(after_s[0] - before_s[0], abs=0.6)
    await boxes[0].files.write("/root/mine", b"mine")
    assert not (await boxes[1].run(Action(["test", "-e", "/root/mine"]))).ok


@pytest.mark.parametrize("options", [{"path": "guest"}, {"path": "exec"}, {"path": "exec", "connection_reuse": False}])
async def test_a_killed_machine_is_a_failure_and_never_an_observation(options: dict[str, Any]) -> None:
    async with machines(boot="restore", **options) as substrate:
        box = await substrate.create(SMALL)
        action = asyncio.create_task(box.run(Action(["sleep", "60"], timeout_s=90)))
        await asyncio.sleep(4 if options["path"] == "exec" else 0.5)
        os.kill(box.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        began_s = time.monotonic()
        with pytest.raises(InfraFailed):
            await asyncio.wait_for(action, 10)
        assert time.monotonic() - began_s < 5
        while box.alive:  # an action's own connection may end a moment before the sandbox's
            assert time.monotonic() - began_s < 5
            await asyncio.sleep(0.05)


async def test_a_machine_that_falls_silent_is_a_failure_soon(restoring: VMSubstrate) -> None:
    box = await restoring.create(SMALL)
    action = asyncio.create_task(box.run(Action(["sleep", "60"], timeout_s=90)))
    await asyncio.sleep(0.5)
    os.kill(box.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    began_s = time.monotonic()
    with pytest.raises(InfraFailed):
        await asyncio.wait_for(action, 15)
    assert time.monotonic() - began_s < 5
    await box.destroy()


async def test_a_cut_cable_is_a_failure_soon(restoring: VMSubstrate) -> None:
    box = await restoring.create(SMALL)
    machine = box.body._node.machine  # type: ignore[attr-defined]
    action = asyncio.create_task(box.run(Action(["sleep", "60"], timeout_s=90)))
    await asyncio.sleep(0.5)
    await machine.command("human-monitor-command", command_line="set_link net off")
    began_s = time.monotonic()
    with pytest.raises(InfraFailed):
        await asyncio.wait_for(action, 15)
    assert time.monotonic() - began_s < 5


async def test_networks(restoring: VMSubstrate) -> None:
    line = "timeout 5 python3 -c \"import socket; socket.create_connection(('10.0.2.2', {port}), 3)\""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        alone = await restoring.create(SMALL)
        assert not (await alone.run(Action(line.format(port=port)))).ok
        outward = await restoring.create(SandboxSpec(SMALL.resources, network=Network.BRIDGE))
        assert (await outward.run(Action(line.format(port=port)))).ok
    with pytest.raises(Unsupported):
        await restoring.create(SandboxSpec(network=Network.HOST))


KILLED = """
import asyncio, sys
from support.machines import SMALL, machines

async def main():
    substrate = machines(boot="restore")
    await substrate.open()
    box = await substrate.create(SMALL)
    print(box.pid, substrate._claim.name, flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


async def test_a_killed_host_process_leaves_no_machine_and_the_next_one_cleans_up(restoring: VMSubstrate) -> None:
    victim = await restoring.create(SMALL)  # somebody else's, which must live on
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        KILLED,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"},
    )
    assert process.stdout is not None
    pid, claim = (await asyncio.wait_for(process.stdout.readline(), 120)).split()
    process.kill()
    await process.wait()
    deadline_s = time.monotonic() + 2
    while _runs(int(pid)):
        assert time.monotonic() < deadline_s, "the machine has outlived its host process by two seconds"
        await asyncio.sleep(0.05)
    left = restoring.store.root.parent / "vm" / "live" / claim.decode()
    assert left.exists()
    while left.exists():  # its threads may still be on their way out
        assert time.monotonic() < deadline_s + 5, "what a dead process left is still there"
        async with machines(boot="restore"):
            await asyncio.sleep(0.1)
    assert (await victim.run(Action(["true"]))).ok


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
