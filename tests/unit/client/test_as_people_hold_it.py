"""Conveniences of observations: text, one stream, exit codes of shells, errors on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import dutyfree
from dutyfree.codec import ACTION, ERROR
from dutyfree.model import Action


@pytest.fixture
async def box() -> AsyncIterator[dutyfree.Box]:
    async with dutyfree.local("process") as host, host.lease() as box:
        yield box


BOTH = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
IN_ORDER = "".join(f"out {i}\nerr {i}\n" for i in range(1, 6))


async def test_merged_output_has_the_order_in_which_it_was_written(box: dutyfree.Box) -> None:
    seen = await box.run(BOTH, merge=True)
    assert (seen.text, seen.stderr, seen.stderr_bytes) == (IN_ORDER, b"", 0)
    apart = await box.run(BOTH)
    assert apart.stderr_text == "".join(f"err {i}\n" for i in range(1, 6))


async def test_streams_and_background_processes_merge_too(box: dutyfree.Box) -> None:
    chunks = [chunk async for chunk in box.stream(BOTH, merge=True)]
    assert {chunk.stream for chunk in chunks} == {"stdout"}
    assert b"".join(chunk.data for chunk in chunks).decode() == IN_ORDER
    process = await box.start(BOTH, merge=True)
    assert b"".join([chunk.data async for chunk in process.output()]).decode() == IN_ORDER


async def test_a_program_that_cannot_be_found_complains_in_the_merged_stream(box: dutyfree.Box) -> None:
    seen = await box.run(["/no/such/program"], merge=True)
    assert seen.exit_code == 127
    assert b"/no/such/program" in seen.stdout


def test_merge_is_part_of_an_actions_json() -> None:
    assert ACTION.decode(ACTION.encode(Action("x", merge=True))) == Action("x", merge=True)
    assert "merge" not in ACTION.encode(Action("x"))


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143), ("true", 0)])
async def test_one_number_as_shells_give_it(box: dutyfree.Box, command: str, code: int) -> None:
    assert (await box.run(command)).shell_code == code


async def test_check_raises_an_error_that_has_the_observation(box: dutyfree.Box) -> None:
    assert (await box.run("echo fine", check=True)).text == "fine\n"
    with pytest.raises(dutyfree.ActionFailed, match="exited with 3: 'no such thing'") as failed:
        await box.run("echo part; echo no such thing >&2; exit 3", check=True)
    error = failed.value
    assert error.observation is not None
    assert (error.observation.stdout, error.observation.shell_code) == (b"part\n", 3)
    assert (error.party, error.retryable) == ("caller", False)
    assert not isinstance(error, dutyfree.InfraFailed | dutyfree.InvalidRequest)
    assert isinstance(ERROR.decode(ERROR.encode(error)), dutyfree.ActionFailed)
    with pytest.raises(dutyfree.ActionFailed, match="signal 9"):
        await box.run("kill -9 $$", check=True)
    with pytest.raises(dutyfree.ActionFailed, match="ran out of time") as late:
        await box.run("sleep 30", timeout_s=0.2, check=True)
    assert late.value.observation is not None
    assert late.value.observation.shell_code == 124
    process = await box.start("exit 4")
    with pytest.raises(dutyfree.ActionFailed, match="exited with 4"):
        (await process.wait()).check()
    assert (await box.run("true")).ok


async def test_a_checked_failure_ends_its_rollout_and_no_other() -> None:
    async def work(box: dutyfree.Box, task: int) -> int:
        await box.run(f"exit {task}", check=True)
        return task

    async with dutyfree.local("process") as host:
        good, bad = await host.map(work, [0, 5])
    assert good.done
    assert isinstance(bad.error, dutyfree.ActionFailed)
    assert bad.tries == 1


async def test_what_a_command_leaves_in_the_background_goes_on_without_a_reader(box: dutyfree.Box) -> None:
    began = time.monotonic()
    seen = await box.run("(sleep 0.3; echo late; echo written > late) & echo first")
    assert seen.text == "first\n"
    assert time.monotonic() - began < 20, "it did not wait for the job's end of the pipe"
    for _ in range(200):
        if (await box.run("cat late")).text == "written\n":
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("the job ended with its action")
