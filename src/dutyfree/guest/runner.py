"""Starts actions on a channel and makes observations of their results; shared by run, streams, sessions and files."""

from __future__ import annotations

import asyncio
import copy
import math
import posixpath
import time
from collections.abc import Callable, Mapping
from typing import Final

from dutyfree.contract import SpanListener
from dutyfree.errors import DeadlineExceeded, SandboxGone, SandboxPaused, Unsupported
from dutyfree.guest.environment import Environment
from dutyfree.guest.exchanges import BACKSTOP_GRACE_S, MAX_SIZE_BYTES, USERS_HINT, ActionExchange, Collected
from dutyfree.guest.limits import LimitCounters, LimitWatch
from dutyfree.model import Action, Observation, Timing, User
from dutyfree.model.user import check_user
from dutyfree.wire.action_channel import ActionChannel
from dutyfree.wire.fields import encode_text
from dutyfree.wire.messages import Exit, ExitFlag, Mode, Request, Run, RunFlag

_ROOTS_DIRECTORIES: Final = ("/", "/root")
"""Working directories of images that name none: root's home, which other users cannot enter, and no home at all."""
_UNLIMITED: Final = LimitCounters()


class Runner:
    """One sandbox's channel, defaults and limits."""

    def __init__(
        self,
        sandbox_id: str,
        channel: ActionChannel,
        *,
        env: Mapping[str, str],
        cwd: str,
        limits: LimitWatch | None,
        on_span: SpanListener | None,
        one_user: str | None = None,
    ) -> None:
        """`one_user`: why actions cannot run as other users, where they cannot."""
        self.sandbox_id = sandbox_id
        self.channel = channel
        self.environment = Environment(env)
        self.on_span = on_span
        self._on_timing: Callable[[Timing], None] | None = getattr(on_span, "on_timing", None)
        """Listeners that have it take an action in one call, for which no spans need to be made."""
        self.known_limits = _UNLIMITED
        self.cwd = cwd
        self._encoded_cwd = encode_text(cwd)
        self._limits = limits
        self.one_user = one_user
        self._began_ns: int | None = None

    def with_channel(self, channel: ActionChannel, began_ns: int | None) -> Runner:
        """The same sandbox through another guest. Its one action began, at `began_ns`, with its start."""
        other = copy.copy(self)
        other.channel = channel
        other._began_ns = began_ns
        return other

    def move_to(self, channel: ActionChannel, limits: LimitWatch | None) -> None:
        """Send later actions to another guest, which may still be starting. Actions under way stay with the old one."""
        self.channel = channel
        self.known_limits = _UNLIMITED
        self._limits = limits

    def directory(self, cwd: str | None, user: User | None = None) -> bytes:
        """The working directory of an action with this `cwd`; empty for a user's home, which the guest knows."""
        if user is not None and self.cwd in _ROOTS_DIRECTORIES:
            return encode_text(cwd or "")
        return self._encoded_cwd if cwd is None else encode_text(posixpath.join(self.cwd, cwd))

    def identity(self, user: User | None) -> tuple[bytes, Environment]:
        """A RUN's user, and the environment that its entries are added to. Raises InvalidRequest, Unsupported."""
        if user is None:
            return b"", self.environment
        wanted = check_user(user)
        if self.one_user is not None:
            raise Unsupported(f"actions cannot run as user {wanted!r} here: {self.one_user}", hint=USERS_HINT)
        return encode_text(wanted), self.environment.of_users

    def request(self, action: Action, *, credit_bytes: int, flags: int) -> Run:
        """The RUN of an action."""
        command = action.command
        is_line = isinstance(command, str)
        user, environment = (b"", self.environment) if action.user is None else self.identity(action.user)
        return Run(
            id=0,
            mode=Mode.SHELL if is_line else Mode.ARGV,
            args=(encode_text(command),) if isinstance(command, str) else tuple(map(encode_text, command)),
            env=environment.entries(action.env),
            cwd=self.directory(action.cwd, action.user),
            flags=flags | RunFlag.MERGE if action.merge else flags,
            timeout_ms=milliseconds(action.timeout_s),
            output_limit=min(action.output_limit_bytes, MAX_SIZE_BYTES),
            credit=credit_bytes,
            user=user,
        )

    def begin(self, exchange: ActionExchange, request: Request, timeout_s: float | None) -> None:
        """Send the request. Raises SandboxGone, SandboxPaused, InvalidRequest."""
        if not self.channel.alive:
            raise SandboxGone(f"sandbox {self.sandbox_id} is gone")
        if self.channel.refuses:
            raise paused(self.sandbox_id)
        self.channel.start(exchange, request)
        if timeout_s is not None:
            exchange.arm(timeout_s + BACKSTOP_GRACE_S)

    async def collect(self, exchange: Collected, request: Run, *, stdin: bytes | None, timeout_s: float) -> Exit:
        """Run to the end, sending the input meanwhile; cancellation kills the action."""
        if self.channel.congested:
            await self._wait_for_room(timeout_s + BACKSTOP_GRACE_S)
        self.begin(exchange, request, timeout_s)
        if stdin:
            exchange.offer_input(stdin, last=True)
        try:
            return await exchange.result()
        except BaseException:
            exchange.abandon()
            raise

    async def _wait_for_room(self, within_s: float) -> None:
        """Return when the guest reads again. If it does not in time, end the channel and raise DeadlineExceeded."""
        try:
            async with asyncio.timeout(within_s):
                await self.channel.drained()
        except TimeoutError:
            self.channel.fail(DeadlineExceeded("the guest does not read what it is sent"))
            self.channel.check()

    async def run(self, action: Action) -> Observation:
        """Run one action to its end."""
        exchange = Collected(action.output_limit_bytes, self.known_limits)
        request = self.request(
            action,
            credit_bytes=exchange.output_credit_bytes,
            flags=RunFlag.STDIN if action.stdin else 0,
        )
        end = await self.collect(exchange, request, stdin=action.stdin, timeout_s=action.timeout_s)
        return self.observe_collected(exchange, end)

    def observe_collected(self, exchange: Collected, end: Exit) -> Observation:
        """The observation of a collected action that has just ended."""
        return self.observe(
            exchange,
            end,
            end_ns=time.monotonic_ns(),
            stdout=bytes(exchange.stdout),
            stderr=bytes(exchange.stderr),
            truncated=exchange.truncated,
        )

    def observe(
        self,
        exchange: ActionExchange,
        end: Exit,
        *,
        end_ns: int,
        stdout: bytes = b"",
        stderr: bytes = b"",
        truncated: bool = False,
    ) -> Observation:
        """The observation of an action that has ended; its spans are reported."""
        timing = self.record(exchange, end, end_ns)
        flags = self.flags(exchange, end)
        return Observation(
            exit_code=end.exit_code,
            signal=end.signal,
            stdout=stdout,
            stderr=stderr,
            timed_out=bool(flags & ExitFlag.TIMED_OUT),
            truncated=truncated or bool(flags & ExitFlag.TRUNCATED),
            stdout_bytes=max(end.stdout_bytes, len(stdout)),
            stderr_bytes=max(end.stderr_bytes, len(stderr)),
            oom_killed=bool(flags & ExitFlag.OOM_KILLED),
            pids_limited=bool(flags & ExitFlag.PIDS_LIMITED),
            disk_full=end.exit_code != 0 and bool(flags & ExitFlag.DISK_FULL),
            cpu_ms=end.cpu_us / 1e3,
            peak_memory_bytes=end.peak_rss_bytes,
            timing=timing,
        )

    def flags(self, exchange: ActionExchange, end: Exit) -> int:
        """The flags of an action that has ended, with the limits that only this side of the sandbox counts."""
        flags = end.flags
        if end.exit_code != 0 and self._limits is not None:
            known, seen = exchange.known_limits, self._limits.counters()
            self.known_limits = seen
            if seen.oom_kills > known.oom_kills:
                flags |= ExitFlag.OOM_KILLED
            if seen.fork_refusals > known.fork_refusals:
                flags |= ExitFlag.PIDS_LIMITED
        return flags

    def record(self, exchange: ActionExchange, end: Exit, end_ns: int) -> Timing:
        """The timing of an action that has ended, reported to the listener.

        The duration that the guest reports is cut to the time that passed on the host's clock.
        """
        start_ns = exchange.start_ns if self._began_ns is None else self._began_ns
        execute_ns = min(end.execute_ns, end_ns - exchange.start_ns)
        timing = Timing(self.sandbox_id, start_ns, end_ns, execute_ns)
        if self._on_timing is not None:
            self._on_timing(timing)
        elif self.on_span is not None:
            for span in timing.spans():
                self.on_span(span)
        return timing


def paused(sandbox_id: str) -> SandboxPaused:
    """The error for new calls of a paused sandbox."""
    return SandboxPaused(f"sandbox {sandbox_id} is paused", hint="resume it first")


def milliseconds(seconds: float) -> int:
    """A timeout for the guest: whole milliseconds, never 0, which would mean none."""
    return max(1, math.ceil(seconds * 1000))
