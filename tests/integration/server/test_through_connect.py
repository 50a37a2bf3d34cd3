"""What a box can do, through a server: each feature once, on cells."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import (
    CapacityError,
    FileFailed,
    InvalidRequest,
    LeaseLost,
    PortFailed,
    SandboxGone,
    SandboxPaused,
    SessionEnded,
    Unsupported,
)
from support.nodes import ServedNode

SERVER = """import socket
listening = socket.create_server(("127.0.0.1", 8000))
for _ in range(2):
    connection = listening.accept()[0]
    connection.sendall(connection.recv(9)[::-1])
"""


async def no_leases(served: ServedNode) -> None:
    for _ in range(500):
        if not served.node.status()["leases"]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(served.node.status())


async def test_actions_and_their_environment(host: dutyfree.RemoteHost) -> None:
    bound = {"env": {"A": "1"}, "secrets": {"TOKEN": "s3cret"}, "workdir": "/tmp"}
    async with host.lease(**bound) as box:  # type: ignore[arg-type]
        seen = await box.run("echo $A $B $TOKEN; pwd; echo err >&2; exit 3", env={"B": "2"})
        assert (seen.text, seen.stderr_text, seen.exit_code) == ("1 2 s3cret\n/tmp\n", "err\n", 3)
        assert (await box.run("cat", stdin="x" * 3_000_000, output_limit_bytes=4_000_000)).stdout == b"x" * 3_000_000
        assert (await box.run("sleep 60", timeout_s=0.3)).timed_out
        assert (await box.run(["sh", "-c", "kill -9 $$"])).signal == signal.SIGKILL
        assert "s3cret" not in repr(box.env)
        assert box.env["A"] == "1"
        await box.set_env({"A": None, "C": "3", "TOKEN": dutyfree.Secret("other")})
        assert (await box.run("echo $A,$C,$TOKEN")).text == ",3,other\n"
        assert "other" not in str(dict(box.env))
        with pytest.raises(InvalidRequest):
            await box.run("true", cwd="/nowhere")


async def test_streams_sessions_and_terminals(host: dutyfree.RemoteHost) -> None:
    async with host.lease() as box:
        async with box.stream("while read x; do echo got $x; done") as stream:
            await stream.write("a\nb\n")
            await stream.end_input()
            assert b"".join([chunk.data async for chunk in stream]) == b"got a\ngot b\n"
        async with box.session() as shell:
            await shell.run("cd /tmp; x=5; f() { echo $x; }")
            assert (await shell.run("f; pwd")).text == "5\n/tmp\n"
            assert (await shell.run("exit 4")).exit_code == 4
            with pytest.raises(SessionEnded):
                await shell.run("true")
        async with box.terminal("tty; stty size", rows=11, cols=44) as terminal:
            shown = b""
            while piece := await terminal.read():
                shown += piece
            assert b"/dev/pts/" in shown
            assert b"11 44" in shown


async def test_files(host: dutyfree.RemoteHost, tmp_path: Path) -> None:
    async with host.lease(files={"/tmp/given": b"given"}, secret_files={"/dev/shm/key": b"hidden"}) as box:
        assert await box.files.read("/tmp/given") == b"given"
        assert (await box.run("cat /dev/shm/key")).text == "hidden"
        (tmp_path / "up").mkdir()
        (tmp_path / "up" / "a").write_bytes(b"z" * 1_000_000)
        await box.files.upload(tmp_path / "up", "/tmp/up")
        await box.files.download("/tmp/up", tmp_path / "down")
        assert (tmp_path / "down" / "a").read_bytes() == b"z" * 1_000_000
        with pytest.raises(FileFailed):
            await box.files.read("/nowhere")
        async with box.files.watch("/tmp") as watch:
            await box.files.write("/tmp/seen", "x")
            async for change in watch:
                if change.path.endswith("seen"):
                    break


async def test_uploads_of_a_lease_come_from_the_client_and_again_after_a_reset(
    host: dutyfree.RemoteHost, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("mine")
    async with host.lease(uploads={"/tmp/data": tmp_path / "data"}, env={"A": "1"}) as box:
        assert (await box.run("cat /tmp/data; rm /tmp/data")).text == "mine"
        await box.set_env({"A": "2"})
        await box.reset()
        assert (await box.run("cat /tmp/data; echo $A")).text == "mine1\n"
        assert box.env["A"] == "1"


async def test_ports(host: dutyfree.RemoteHost) -> None:
    async with host.lease() as box:
        with pytest.raises(PortFailed):
            await box.dial(9)
        await box.start(["python3", "-c", SERVER])
        await box.wait_for_port(8000)
        assert [each.port for each in await box.ports()] == [8000]
        async with await box.dial(8000) as connection:
            await connection.write(b"hello")
            assert await connection.read() == b"olleh"


async def test_forks_snapshots_and_resets(host: dutyfree.RemoteHost) -> None:
    async with host.lease() as box:
        await box.run("echo one > /tmp/x")
        forks = await box.fork(2)
        await forks[0].run("echo two > /tmp/x")
        assert (await forks[1].run("cat /tmp/x")).text == (await box.run("cat /tmp/x")).text == "one\n"
        snapshot = await box.snapshot()
        async with host.lease(snapshot.image) as other:
            assert (await other.run("cat /tmp/x")).text == "one\n"
        await snapshot.discard()
        with pytest.raises(InvalidRequest, match="no such image"):
            await host.acquire(snapshot.image)
        await forks[0].close()
        with pytest.raises(SandboxGone):
            await forks[0].run("true")
        await box.reset()
        assert not (await box.run("cat /tmp/x")).ok
        assert (await forks[1].run("cat /tmp/x")).ok
    with pytest.raises(LeaseLost):
        await forks[1].run("true")
    with pytest.raises(LeaseLost):
        await box.run("true")


async def test_pause(host: dutyfree.RemoteHost) -> None:
    async with host.lease() as box:
        running = asyncio.ensure_future(box.run("sleep 0.5; echo done", timeout_s=1.5))
        await asyncio.sleep(0.2)
        await box.pause()
        assert box.paused
        with pytest.raises(SandboxPaused):
            await box.run("true")
        await asyncio.sleep(2.0)
        await box.resume()
        assert (await running).text == "done\n"
        assert (await box.run("true")).ok


async def test_background_processes_and_kept_sessions_are_found_by_another_client(
    served: ServedNode, host: dutyfree.RemoteHost
) -> None:
    async with served.host() as other, host.lease(ttl_s=60) as box:
        process = await box.start("echo one; read x; echo $x; exit 5", stdin=True)
        shell = await box.keep_session("work")
        await shell.run("cd /usr; y=7")
        again = await other.get(box.lease.id)
        assert [each.id for each in await again.processes()] == [process.id]
        same = again.process(process.id)
        chunk = await same.read(0)
        assert chunk is not None
        assert chunk.data == b"one\n"
        await same.write("two\n")
        assert (await same.wait()).exit_code == 5
        assert b"".join([chunk.data async for chunk in same.output()]) == b"one\ntwo\n"
        assert (await (await again.kept_session("work")).run("echo $y; pwd")).text == "7\n/usr\n"
        with pytest.raises(InvalidRequest):
            await again.keep_session("work")
        with pytest.raises(InvalidRequest):
            await again.kept_session("nothing")
        with pytest.raises(InvalidRequest):
            await again.process("p77").wait()
        await box.close()
        with pytest.raises(LeaseLost):
            await again.run("true")


async def test_labels_renewals_and_keys(host: dutyfree.RemoteHost) -> None:
    box = await host.acquire(labels={"task": "1"}, ttl_s=30, key="k")
    same = await host.acquire(labels={"task": "1"}, ttl_s=30, key="k")
    assert same.lease.id == box.lease.id
    assert [each.id for each in await host.find_leases(labels={"task": "1"})] == [box.lease.id]
    await box.set_labels({"task": "2"})
    assert await host.find_leases(labels={"task": "1"}) == []
    assert box.lease.labels == {"task": "2"}
    before = box.lease.expires_at
    assert before is not None
    await box.renew(300)
    assert box.lease.expires_at is not None
    assert box.lease.expires_at > before + 200
    await box.renew(float("inf"))
    assert box.lease.expires_at is None
    await host.release(box.lease.id)
    with pytest.raises(LeaseLost):
        await box.run("true")
    with pytest.raises(LeaseLost):
        await host.get(box.lease.id)
    short = await host.acquire(ttl_s=0.3)
    await asyncio.sleep(1.0)
    with pytest.raises(LeaseLost):
        await short.run("true")


async def test_groups_and_maps(host: dutyfree.RemoteHost) -> None:
    async def prepare(box: dutyfree.Box) -> None:
        await box.run("echo ready > /tmp/x")

    async with host.group(n=3, prepare=prepare) as group:
        seen = await asyncio.gather(*(box.run("cat /tmp/x") for box in group))
        assert [each.text for each in seen] == ["ready\n"] * 3

    async def work(box: dutyfree.Box, task: int) -> str:
        return (await box.run(f"echo {task}")).text

    rollouts = await host.map(work, [1, 2, 3], concurrency=2)
    assert [each.value for each in rollouts] == ["1\n", "2\n", "3\n"]


def test_the_sync_client(tmp_path: Path) -> None:
    """The node has a loop and a thread of its own; the client is used without `await`."""
    import threading

    from support.nodes import served_node

    ready, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with served_node(tmp_path, resume_s=1.0) as served:
            found.extend((served.url, served.token))
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        with dutyfree.sync.connect(found[0], token=found[1]) as host, host.lease() as box:
            assert box.run("echo hi").text == "hi\n"
            with box.session() as shell:
                assert shell.run("echo $$").ok
            box.files.write("/tmp/x", "y")
            assert box.fork(1)[0].run("cat /tmp/x").text == "y"
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


async def test_what_a_server_does_not_show_by_default(host: dutyfree.RemoteHost, tmp_path: Path) -> None:
    for network in ("host", "bridge"):
        with pytest.raises(InvalidRequest, match="cannot have the network"):
            await host.acquire(network=network)
    with pytest.raises(InvalidRequest, match="does not show"):
        await host.acquire(mounts=[dutyfree.Mount(str(tmp_path), "/data")])
    with pytest.raises(InvalidRequest, match="no private addresses"):
        await host.acquire(network=dutyfree.Egress(private=["10.0.0.1"]))
    async with host.lease(network=dutyfree.Egress(allow=["example.org"])) as box:
        with pytest.raises(InvalidRequest, match="no private addresses"):
            await box.egress.set(dutyfree.Egress(hosts={"a.example": "10.0.0.1"}))
    with pytest.raises(Unsupported):
        await host.acquire(dutyfree.Recipe())
    assert host.leases() == []
    assert not {dutyfree.Capability.HOST_NETWORK, dutyfree.Capability.MOUNTS} & host.capabilities


async def test_limits_of_an_owner(served: ServedNode) -> None:
    token = served.token_of("small", max_sandboxes=1)
    async with dutyfree.connect(served.url, token=token) as host, host.lease():
        with pytest.raises(CapacityError, match="1 sandboxes of this owner"):
            await host.acquire()
    async with dutyfree.connect(served.url, token=token) as host, host.lease() as box:
        assert (await box.run("true")).ok
    often = served.token_of("often", leases_per_minute=2)
    async with dutyfree.connect(served.url, token=often) as host:
        for _ in range(2):
            async with host.lease():
                pass
        with pytest.raises(CapacityError, match="within a minute") as caught:
            await host.acquire()
        assert 0 < (caught.value.retry_after_s or 0) <= 60


async def test_another_owner_sees_nothing(served: ServedNode, host: dutyfree.RemoteHost) -> None:
    box = await host.acquire(ttl_s=60, labels={"a": "b"})
    snapshot = await box.snapshot()
    async with dutyfree.connect(served.url, token=served.token_of("mallory")) as mallory:
        words = set()
        for call in (mallory.get, mallory.release):
            for lease_id in (box.lease.id, box.lease.id + "0"):
                with pytest.raises(LeaseLost) as caught:
                    await call(lease_id)
                words.add(str(caught.value).replace(lease_id, "ID"))
        assert len(words) == 1
        assert await mallory.find_leases() == await mallory.find_leases(owner="tester") == []
        texts = set()
        for image in (snapshot.image, dutyfree.Image(reference="dutyfree-snapshot:" + "0" * 32, over_host=False)):
            with pytest.raises(InvalidRequest) as refused:
                await mallory.acquire(image)
            texts.add(str(refused.value))
        assert len(texts) == 1
        with pytest.raises(InvalidRequest):
            await mallory.acquire(owner="tester")
    assert (await box.run("true")).ok
    await box.close()


async def test_a_cancelled_acquire_leaves_no_lease(served: ServedNode, host: dutyfree.RemoteHost) -> None:
    for moment in range(12):
        acquiring = asyncio.ensure_future(host.acquire())
        await asyncio.sleep(moment / 400)
        acquiring.cancel()
        with suppress(asyncio.CancelledError):
            await (await acquiring).close()
    await no_leases(served)


async def test_one_client_drives_many_sandboxes_at_once(host: dutyfree.RemoteHost) -> None:
    boxes = await asyncio.gather(*(host.acquire() for _ in range(30)))
    seen = await asyncio.gather(*(box.run(f"echo {n}") for n, box in enumerate(boxes * 10)))
    assert [each.text for each in seen] == [f"{n}\n" for n in range(300)]
    await asyncio.gather(*(box.close() for box in boxes))
