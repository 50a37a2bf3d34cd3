"""The client, on a substrate of real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.substrates import registry


@pytest.fixture
async def host() -> AsyncIterator[dutyfree.LocalHost]:
    async with dutyfree.local(substrate="process") as host:
        yield host


@pytest.fixture
async def box(host: dutyfree.LocalHost) -> AsyncIterator[dutyfree.Box]:
    async with host.lease() as box:
        yield box


async def test_run_gives_everything_that_an_observation_has(box: dutyfree.Box) -> None:
    seen = await box.run("echo out; echo err >&2; exit 7")
    assert (seen.exit_code, seen.signal, seen.stdout, seen.stderr) == (7, None, b"out\n", b"err\n")
    assert seen.text == "out\n"
    assert not seen.timed_out
    assert not seen.truncated
    assert not seen.oom_killed
    assert seen.execute_ms > 0
    assert [span.phase for span in seen.spans] == ["dispatch", "execute", "observe"]


async def test_an_argv_is_not_read_by_a_shell(box: dutyfree.Box) -> None:
    assert (await box.run(["echo", "$HOME;"])).stdout == b"$HOME;\n"


async def test_run_passes_its_options_on(box: dutyfree.Box, tmp_path: Path) -> None:
    seen = await box.run("pwd; echo $A; cat", cwd=str(tmp_path), env={"A": "1"}, stdin=b"in")
    assert seen.text == f"{tmp_path}\n1\nin"
    assert (await box.run("sleep 60", timeout_s=0.2)).timed_out
    assert (await box.run("echo 12345678", output_limit_bytes=4)).truncated


async def test_a_leases_environment_reaches_every_action(host: dutyfree.LocalHost) -> None:
    async with host.lease(env={"COLOUR": "blue"}) as box:
        assert (await box.run("echo $COLOUR")).stdout == b"blue\n"
        assert (await box.run("echo $COLOUR", env={"COLOUR": "red"})).stdout == b"red\n"


async def test_a_stream_can_simply_be_looped_over(box: dutyfree.Box) -> None:
    stream = box.stream("echo one; cat; echo two >&2; exit 3")
    chunks = [chunk async for chunk in stream]
    assert {chunk.stream: chunk.data for chunk in chunks} == {"stdout": b"one\n", "stderr": b"two\n"}
    assert (await stream.wait()).exit_code == 3


async def test_a_stream_takes_input_while_it_runs(box: dutyfree.Box) -> None:
    async with box.stream("while read line; do echo got $line; done") as stream:
        chunks = aiter(stream)
        for word in (b"a", b"b"):
            await stream.write(word + b"\n")
            assert (await anext(chunks)).data == b"got " + word + b"\n"
        await stream.end_input()
        assert (await stream.wait()).ok


async def test_leaving_a_stream_early_ends_the_command(box: dutyfree.Box, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async with box.stream(f"echo started; sleep 1; touch {marker}") as stream:
        async for _ in stream:
            break
    await asyncio.sleep(1.3)
    assert not marker.exists()


async def test_breaking_out_of_a_plain_loop_ends_the_command(box: dutyfree.Box, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async for _ in box.stream(f"echo started; sleep 1; touch {marker}"):
        break
    await asyncio.sleep(1.3)
    assert not marker.exists()


async def test_a_session_remembers(box: dutyfree.Box) -> None:
    async with box.session() as shell:
        await shell.run("cd /usr && export A=1")
        assert (await shell.run("echo $PWD $A")).stdout == b"/usr 1\n"


async def test_a_terminal_is_a_terminal(box: dutyfree.Box) -> None:
    async with box.terminal("test -t 0 && stty size", rows=33, cols=77) as terminal:
        shown = b""
        while piece := await terminal.read():
            shown += piece
        assert shown == b"33 77\r\n"
        assert (await terminal.wait()).ok


async def test_files_go_in_and_come_out(box: dutyfree.Box, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    await box.files.write(path, b"content")
    assert await box.files.read(path) == b"content"


async def test_cancelling_a_run_leaves_the_box_usable(box: dutyfree.Box, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    running = asyncio.create_task(box.run(f"sleep 1; touch {marker}"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await box.run("true")).ok
    await asyncio.sleep(1.2)
    assert not marker.exists()


async def test_a_box_is_dead_after_its_lease(host: dutyfree.LocalHost) -> None:
    async with host.lease() as box:
        assert box.id
        assert box.alive
    assert not box.alive
    with pytest.raises(dutyfree.LeaseLost):
        await box.run("true")


async def test_closing_the_host_destroys_what_is_alive() -> None:
    async with dutyfree.local(substrate="process") as host:
        lease = host.lease()
        box = await lease.__aenter__()
    assert not box.alive
    await lease.__aexit__(None, None, None)


async def test_a_host_says_what_it_is(host: dutyfree.LocalHost) -> None:
    assert host.substrate == "process"
    assert host.isolation is dutyfree.Isolation.NONE
    assert dutyfree.Capability.FILES in host.capabilities


async def test_a_process_sandbox_admits_what_it_does_not_enforce(box: dutyfree.Box) -> None:
    assert "network" in " ".join(each.what for each in box.unenforced)


async def test_too_weak_a_wall_is_refused(host: dutyfree.LocalHost) -> None:
    with pytest.raises(dutyfree.Unsupported, match="none"):
        async with host.lease(isolation="namespace"):
            pass
    async with host.lease(isolation="none") as box:
        assert box.alive


@pytest.mark.parametrize("options", [{"network": "wifi"}, {"writes": "tape"}, {"isolation": "strong"}])
async def test_values_that_do_not_exist_are_refused(host: dutyfree.LocalHost, options: dict[str, str]) -> None:
    with pytest.raises(dutyfree.InvalidRequest, match=next(iter(options))):
        async with host.lease(**options):  # type: ignore[arg-type]
            pass


async def test_a_host_must_be_entered_first() -> None:
    with pytest.raises(dutyfree.InvalidRequest, match="not open"):
        async with dutyfree.local(substrate="process").lease():
            pass


async def test_an_unknown_substrate_is_named_with_those_that_exist() -> None:
    with pytest.raises(dutyfree.InvalidRequest, match=r"nowhere.*cell"):
        async with dutyfree.local(substrate="nowhere"):
            pass


async def test_a_substrate_of_ones_own_is_taken_as_it_is() -> None:
    async with dutyfree.local(registry.load("process")) as host, host.lease() as box:
        assert (await box.run("echo mine")).text == "mine\n"
    with pytest.raises(dutyfree.InvalidRequest, match="options"):
        dutyfree.local(registry.load("process"), colour="blue")


async def test_spans_reach_the_listener() -> None:
    spans: list[dutyfree.Span] = []
    async with dutyfree.local(substrate="process", on_span=spans.append) as host, host.lease() as box:
        await box.run("true")
    assert {"create", "execute", "destroy"} <= {str(span.phase) for span in spans}
