"""GuestSandbox against a scripted guest: what a real guest would be too well behaved, or too slow, to show."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    FileFailed,
    GuestMisbehaved,
    InvalidRequest,
    LinkFailed,
    SandboxGone,
    SessionEnded,
    SubstrateFailed,
    Unsupported,
)
from dutyfree.guest import DEFAULT_ENVIRONMENT, GuestSandbox, LimitCounters
from dutyfree.model import Action, Observation, Phase, Span
from dutyfree.wire.channel import Channel
from dutyfree.wire.frames import STDERR, STDOUT
from dutyfree.wire.messages import (
    Exit,
    ExitFlag,
    Input,
    InputEnd,
    Mode,
    Output,
    OutputCredit,
    Refused,
    Run,
    Signal,
    Started,
)
from support.scripted_guest import ScriptedGuest

MIB = 1024 * 1024


class Limits:
    """A LimitWatch whose counters a test sets."""

    def __init__(self) -> None:
        self.now = LimitCounters()
        self.asked = 0

    def counters(self) -> LimitCounters:
        self.asked += 1
        return self.now


class House:
    """A sandbox, its scripted guest, and what was asked of the substrate."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.guest = ScriptedGuest(theirs)
        self.limits = Limits()
        self.spans: list[Span] = []
        self.destroyed = 0
        self.destroy_fails = False
        self.sandbox = GuestSandbox(
            "box",
            Channel.over_socket(ours),
            destroy=self._destroy,
            env={"A": "1", "B": "2"},
            cwd="/work",
            limits=self.limits,
            on_span=self.spans.append,
        )

    async def _destroy(self) -> None:
        self.destroyed += 1
        await asyncio.sleep(0.01)
        if self.destroy_fails:
            raise SubstrateFailed("stuck")

    def run(self, command: str = "x", **options: Any) -> asyncio.Task[Observation]:
        return asyncio.create_task(self.sandbox.run(Action(command, **options)))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    await house.guest.greet()
    yield house
    house.destroy_fails = False
    await house.sandbox.destroy()
    house.guest.hang_up()


async def test_a_request_carries_all_of_the_action(house: House) -> None:
    house.run("echo", cwd="sub", env={"B": "3"}, timeout_s=1.5, output_limit_bytes=10)
    run = await house.guest.hear(Run)
    assert (run.mode, run.args, run.env, run.cwd) == (Mode.SHELL, (b"echo",), (b"A=1", b"B=3"), b"/work/sub")
    assert (run.timeout_ms, run.output_limit, run.flags) == (1500, 10, 0)
    assert run.credit > 10


async def test_a_request_without_a_user_has_no_field_for_it(house: House) -> None:
    house.run("echo")
    run = await house.guest.hear(Run)
    tags = {field[0] for field in fields_of(run.payload())}
    assert 12 not in tags


async def test_a_users_request_leaves_out_what_only_root_has(house: House) -> None:
    house.sandbox = GuestSandbox(
        "box",
        house.sandbox._runner.channel,
        destroy=house._destroy,
        env={**DEFAULT_ENVIRONMENT, "PATH": "/bin", "LANG": "C"},
        cwd="/root",
    )
    for action, env, cwd in (
        (Action("id", user="ann"), (b"PATH=/bin", b"LANG=C"), b""),
        (Action("id", user=7, env={"HOME": "/root"}), (b"PATH=/bin", b"LANG=C", b"HOME=/root"), b""),
        (Action("id", user="ann:staff", cwd="/tmp"), (b"PATH=/bin", b"LANG=C"), b"/tmp"),
        (Action("id"), (b"PATH=/bin", b"HOME=/root", b"LANG=C", b"USER=root"), b"/root"),
    ):
        task = asyncio.create_task(house.sandbox.run(action))
        run = await house.guest.hear(Run)
        assert (run.env, run.cwd, run.user.decode()) == (env, cwd, str(action.user or ""))
        await house.guest.say(Exit(run.id, 0, None))
        await task


async def test_a_users_home_that_the_spec_sets_is_kept(house: House) -> None:
    house.run("id", user="ann", env={})
    run = await house.guest.hear(Run)
    assert (run.env, run.cwd, run.user) == ((b"A=1", b"B=2"), b"/work", b"ann")


@pytest.mark.parametrize(
    "user", ["", "a:", ":a", "a:b:c", "a\0", "a\nb", -1, 2**32 - 1, str(2**32 - 1), "-1", True, "x" * 256]
)
def test_users_that_cannot_be_are_refused(user: Any) -> None:
    with pytest.raises(InvalidRequest):
        Action("true", user=user)


async def test_a_sandbox_with_one_user_refuses_others_before_anything_is_sent(house: House) -> None:
    sandbox = GuestSandbox(
        "box", house.sandbox._runner.channel, destroy=house._destroy, env={}, one_user="there is one id"
    )
    with pytest.raises(Unsupported, match="there is one id"):
        await sandbox.run(Action("true", user=1))
    with pytest.raises(Unsupported):
        await sandbox.session(user=1)
    with pytest.raises(Unsupported):
        await sandbox.terminal("true", user=1)
    with pytest.raises(Unsupported):
        sandbox.files.as_user(1)


def fields_of(payload: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(payload):
        length = int.from_bytes(payload[at + 1 : at + 5], "little")
        found.append((payload[at], payload[at + 5 : at + 5 + length]))
        at += 5 + length
    return found


async def test_an_observation_says_what_the_guest_said(house: House) -> None:
    running = house.run()
    run = await house.guest.hear(Run)
    end = Exit(run.id, None, 9, 1000, 2500, 4096, ExitFlag.TIMED_OUT | ExitFlag.TRUNCATED, 70, 80)
    await house.guest.say(Output(run.id, STDOUT, b"out"), Output(run.id, STDERR, b"err"), end)
    seen = await running
    assert (seen.exit_code, seen.signal, seen.stdout, seen.stderr) == (None, 9, b"out", b"err")
    assert (seen.timed_out, seen.truncated, seen.stdout_bytes, seen.stderr_bytes) == (True, True, 70, 80)
    assert (seen.cpu_ms, seen.peak_memory_bytes, seen.timing.execute_ns) == (2.5, 4096, 1000)
    assert [span.phase for span in house.spans] == [Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE]


async def test_a_guest_cannot_have_run_for_longer_than_the_host_waited(house: House) -> None:
    running = house.run()
    run = await house.guest.hear(Run)
    await house.guest.say(Exit(run.id, 0, None, execute_ns=2**63))
    timing = (await running).timing
    assert timing.execute_ns == timing.end_ns - timing.start_ns


async def test_the_host_holds_to_the_output_limit_by_itself(house: House) -> None:
    running = house.run(output_limit_bytes=5)
    run = await house.guest.hear(Run)
    await house.guest.say(Output(run.id, STDOUT, b"abc"), Output(run.id, STDERR, b"defg"), Exit(run.id, 0, None))
    seen = await running
    assert (seen.stdout, seen.stderr, seen.truncated) == (b"abc", b"de", True)


async def test_input_follows_the_request(house: House) -> None:
    running = house.run(stdin=b"typed")
    run = await house.guest.hear(Run)
    assert (await house.guest.hear(Input)).data == b"typed"
    await house.guest.hear(InputEnd)
    await house.guest.say(Exit(run.id, 0, None))
    await running


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (1, InvalidRequest),
        (2, CapacityError),
        (3, InvalidRequest),
        (4, SessionEnded),
        (5, Unsupported),
        (6, InvalidRequest),
        (7, Unsupported),
        (99, InvalidRequest),
    ],
)
async def test_a_refusal_is_an_error_of_its_own_kind(house: House, reason: int, error: type[Exception]) -> None:
    running = house.run()
    run = await house.guest.hear(Run)
    await house.guest.say(Refused(run.id, 2, b"why", reason))
    with pytest.raises(error):
        await running
    assert house.sandbox.alive


async def test_limits_are_asked_about_only_after_failures_and_hits_go_to_those_who_ran(house: House) -> None:
    async def outcome(exit_code: int, *running: asyncio.Task[Observation]) -> list[Observation]:
        for _ in running:
            run = await house.guest.hear(Run)
            await house.guest.say(Exit(run.id, exit_code, None, flags=ExitFlag.DISK_FULL if exit_code == 137 else 0))
        return list(await asyncio.gather(*running))

    await outcome(0, house.run())
    assert house.limits.asked == 0
    running = house.run(), house.run()
    await asyncio.sleep(0)
    house.limits.now = LimitCounters(oom_kills=1, fork_refusals=2)
    for seen in await outcome(137, *running):
        assert (seen.oom_killed, seen.pids_limited, seen.disk_full) == (True, True, True)
    house.limits.now = LimitCounters(oom_kills=1, fork_refusals=2)
    (later,) = await outcome(1, house.run())
    assert (later.oom_killed, later.pids_limited, later.disk_full) == (False, False, False)


async def test_a_cancelled_action_is_killed_and_what_it_still_says_is_ignored(house: House) -> None:
    running = house.run(output_limit_bytes=100)
    run = await house.guest.hear(Run)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await house.guest.hear(Signal) == Signal(run.id, 9, True)
    for _ in range(MIB // 65536):  # as much as it was allowed; nothing is said to that
        await house.guest.say(Output(run.id, STDOUT, bytes(65536)))
    await house.guest.say(Exit(run.id, None, 9))
    following = house.run()
    run = await house.guest.hear(Run)
    await house.guest.say(Exit(run.id, 0, None))
    assert (await following).ok


async def test_an_action_that_is_never_answered_is_a_missed_deadline(house: House) -> None:
    running, other = house.run(timeout_s=0.1), house.run()
    with pytest.raises(DeadlineExceeded):
        await running
    with pytest.raises(DeadlineExceeded):
        await other
    assert not house.sandbox.alive


async def test_the_guests_death_fails_pending_calls_and_later_ones_find_the_sandbox_gone(house: House) -> None:
    running = house.run()
    await house.guest.hear(Run)
    house.guest.hang_up()
    with pytest.raises(LinkFailed):
        await running
    assert not house.sandbox.alive
    for call in (
        lambda: house.sandbox.run(Action("x")),
        lambda: house.sandbox.session(),
        lambda: house.sandbox.terminal("x"),
        lambda: house.sandbox.files.read("/x"),
        lambda: house.sandbox.files.upload(__file__, "/x"),
        lambda: house.sandbox.files.download("/x", "/nonexistent/x"),
    ):
        with pytest.raises(SandboxGone):
            await call()
    with pytest.raises(SandboxGone):
        house.sandbox.stream(Action("x"))


async def test_destroy_happens_once_for_all_who_ask(house: House) -> None:
    running = house.run()
    await house.guest.hear(Run)
    await asyncio.gather(house.sandbox.destroy(), house.sandbox.destroy())
    await house.sandbox.destroy()
    with pytest.raises(SubstrateFailed):
        await running
    assert house.destroyed == 1
    assert [span.phase for span in house.spans] == [Phase.DESTROY]


async def test_a_cancelled_destroy_can_be_asked_for_again(house: House) -> None:
    destroying = asyncio.create_task(house.sandbox.destroy())
    await asyncio.sleep(0)
    destroying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await destroying
    assert not house.sandbox.alive
    await house.sandbox.destroy()
    await house.sandbox.destroy()
    assert house.destroyed == 2
    assert [span.phase for span in house.spans] == [Phase.DESTROY]


async def test_a_destroy_that_failed_can_be_tried_again(house: House) -> None:
    house.destroy_fails = True
    with pytest.raises(SubstrateFailed, match="stuck"):
        await house.sandbox.destroy()
    house.destroy_fails = False
    await house.sandbox.destroy()
    assert house.destroyed == 2


async def test_a_stalled_reader_costs_the_window_and_no_more(house: House) -> None:
    async with house.sandbox.stream(Action("x", output_limit_bytes=100 * MIB)) as stream:
        run = await house.guest.hear(Run)
        assert run.credit == MIB
        for _ in range(16):
            await house.guest.say(Output(run.id, STDOUT, bytes(65536)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(house.guest.hear(OutputCredit), 0.05)
        taken = 0
        while taken < MIB:
            taken += len((await anext(aiter(stream))).data)
        assert (await house.guest.hear(OutputCredit)).size_bytes == MIB
        await house.guest.say(Output(run.id, STDERR, b"x"), Exit(run.id, 0, None))
        assert [(chunk.stream, chunk.data) async for chunk in stream] == [("stderr", b"x")]
        assert (await stream.wait()).ok


async def test_a_stream_that_passes_its_window_is_misbehaviour(house: House) -> None:
    async with house.sandbox.stream(Action("x")) as stream:
        run = await house.guest.hear(Run)
        for _ in range(16):
            await house.guest.say(Output(run.id, STDOUT, bytes(65536)))
        await house.guest.say(Output(run.id, STDOUT, b"x"))
        await asyncio.sleep(0.05)
        with pytest.raises(GuestMisbehaved):
            await stream.wait()


async def test_leaving_a_stream_kills_its_tree(house: House) -> None:
    async def answer() -> Signal:
        run = await house.guest.hear(Run)
        signal = await house.guest.hear(Signal)
        await house.guest.say(Exit(run.id, None, 9))
        return signal

    answering = asyncio.create_task(answer())
    async with house.sandbox.stream(Action("x")):
        pass
    assert (await answering).tree


async def test_a_read_that_is_given_up_does_not_end_a_stream(house: House) -> None:
    async with house.sandbox.stream(Action("x")) as stream:
        run = await house.guest.hear(Run)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(stream)), 0.01)
        await house.guest.say(Output(run.id, STDOUT, b"late"), Exit(run.id, 0, None))
        assert [chunk.data async for chunk in stream] == [b"late"]


async def test_the_line_behind_a_cancelled_one_waits_until_that_is_over(house: House) -> None:
    opening = asyncio.create_task(house.sandbox.session())
    shell = await house.guest.hear(Run)
    assert (shell.mode, shell.credit) == (Mode.SESSION, 0)
    await house.guest.say(Started(shell.id))
    session = await opening
    first = asyncio.create_task(session.run("sleep 100"))
    line = await house.guest.hear(Run)
    assert (line.mode, line.session) == (Mode.LINE, shell.id)
    first.cancel()
    second = asyncio.create_task(session.run("true"))
    await house.guest.hear(Signal)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(house.guest.hear(Run), 0.05)
    await house.guest.say(Exit(line.id, 130, None))
    line = await house.guest.hear(Run)
    await house.guest.say(Exit(line.id, 3, None, flags=ExitFlag.SESSION_ENDED))
    assert (await second).exit_code == 3
    assert not session.alive
    with pytest.raises(SessionEnded):
        await session.run("true")
    await house.guest.say(Exit(shell.id, 3, None))
    await session.close()


async def test_output_of_a_sessions_own_id_is_misbehaviour(house: House) -> None:
    opening = asyncio.create_task(house.sandbox.session())
    shell = await house.guest.hear(Run)
    await house.guest.say(Started(shell.id), Output(shell.id, STDOUT, b"x"))
    with pytest.raises(GuestMisbehaved):
        await opening


async def test_an_action_that_was_not_asked_to_say_so_cannot_start(house: House) -> None:
    running = house.run()
    run = await house.guest.hear(Run)
    await house.guest.say(Started(run.id))
    with pytest.raises(GuestMisbehaved):
        await running


async def test_file_errors_carry_the_kernels_number(house: House) -> None:
    reading = asyncio.create_task(house.sandbox.files.read("/a"))
    run = await house.guest.hear(Run)
    assert (run.mode, run.args[:2]) == (Mode.APPLET, (b"read", b"/a"))
    await house.guest.say(Output(run.id, STDERR, b"lies"), Exit(run.id, 2, None))
    with pytest.raises(FileFailed, match="No such file") as caught:
        await reading
    assert caught.value.errno == 2


async def test_relative_paths_and_odd_modes_are_refused_before_anything_is_sent(house: House) -> None:
    with pytest.raises(InvalidRequest):
        await house.sandbox.files.read("a")
    with pytest.raises(InvalidRequest):
        await house.sandbox.files.write("/a", b"", mode=0o100644)


async def test_a_request_that_no_frame_can_hold_is_refused(house: House) -> None:
    with pytest.raises(InvalidRequest, match="1048576"):
        await house.sandbox.run(Action("x" * 2 * MIB))
    assert house.sandbox.alive
