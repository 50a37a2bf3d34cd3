"""A box that a client has attached to: its number, and how the client's actions become actions of its guest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dutyfree.client.box import Box, inside
from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, InvalidRequest, LeaseLost, SessionEnded, Unsupported
from dutyfree.guest.runner import Runner
from dutyfree.guest.sandbox import GuestSandbox
from dutyfree.leases.binding import MaskedEnvironment
from dutyfree.model.environment import check_env
from dutyfree.protocol.forms import BoxFacts, BoxState
from dutyfree.server.node.client_run import ClientRun
from dutyfree.server.node.relay import Relay
from dutyfree.wire.fields import decode_text
from dutyfree.wire.messages import Mode, RunFlag

if TYPE_CHECKING:
    from dutyfree.server.node.caller import Caller

_WITH_ENVIRONMENT: Final = (Mode.ARGV, Mode.SHELL, Mode.SESSION)
_OF_ANOTHER: Final[Mapping[int, Mode]] = {Mode.LINE: Mode.SESSION, Mode.ACCEPT: Mode.LISTEN}
"""Actions that name another one: a line its session, an accept its listener."""


class AttachedBox:
    """A lease's sandbox, or a fork of it, under the number that one client has for it."""

    def __init__(self, number: int, box: Box) -> None:
        """Raises Unsupported for a sandbox whose actions do not share one guest."""
        self.number = number
        self.box = box
        self._grant, self._sandbox = inside(box)
        self._guest = _guest_of(self._sandbox)
        box.detach()
        self._abandoned: asyncio.Task[None] | None = None

    @property
    def lease_id(self) -> str:
        """The lease that it belongs to."""
        return self.box.lease.id

    def facts(self) -> BoxFacts:
        """What the client must know to speak to the guest."""
        runner = self._runner()
        return BoxFacts(
            box=self.number,
            sandbox=self.box.id,
            cwd=runner.cwd,
            one_user=runner.one_user,
            has_ports=self._guest.has_ports,
            refusal_hint=self._guest.refusal_hint,
            unenforced=self.box.unenforced,
        )

    def state(self) -> BoxState:
        """What else the client shows of it."""
        env = self._grant.env
        secret = env.secret if isinstance(env, MaskedEnvironment) else frozenset()
        binding, egress = self._grant.binding, self._grant.egress
        return BoxState(
            user=binding.user,
            workdir=binding.workdir,
            env={name: "***" if name in secret else value for name, value in env.items()},
            secret=tuple(sorted(secret)),
            paused=self.box.paused,
            egress=None if egress is None else self.box.egress.rules,
        )

    def start(self, caller: Caller, client_id: int, request: ClientRun) -> Relay:
        """Start an action of the client. Raises LeaseLost, InvalidRequest and as `Runner.begin` does."""
        self._grant.fence.check()
        runner = self._runner()
        relay = Relay(caller, client_id, request, self, runner)
        timeout_s = request.timeout_ms / 1000 if request.timeout_ms else None
        request.credit = relay.output_credit_bytes
        self._translate(caller, request, runner)
        runner.begin(relay, request, timeout_s)
        return relay

    def seen(self, error: DutyfreeError) -> DutyfreeError:
        """The error as a tenant sees it: after the end of the lease, LeaseLost alone."""
        try:
            self._grant.fence.check()
        except LeaseLost as lost:
            return lost
        return error

    def abandon(self) -> None:
        """Destroy the sandbox: its guest has failed, and nothing may run in it any more."""
        if self._abandoned is None and self._sandbox.alive:
            self._abandoned = asyncio.get_running_loop().create_task(_destroy(self._sandbox))

    def _runner(self) -> Runner:
        runner = self._guest.runner
        assert runner is not None  # _guest_of has checked it
        return runner

    def _translate(self, caller: Caller, request: ClientRun, runner: Runner) -> None:
        """Write into the request what the guest is to have of it: its own ids, and the lease's environment."""
        if (wanted := _OF_ANOTHER.get(request.mode)) is not None:
            other = caller.relay(request.session)
            if other is None or other.mode != wanted or other.attached is not self:
                if wanted is Mode.SESSION:
                    raise SessionEnded("the session's shell has exited", hint="open another session")
                raise InvalidRequest("this listener was closed")
            request.session = other.id
        elif request.mode in _WITH_ENVIRONMENT:
            request.env = self._environment(request, runner)

    def _environment(self, request: ClientRun, runner: Runner) -> tuple[bytes, ...]:
        """The sandbox's environment, the lease's over it, and the action's own over both."""
        environment = runner.environment.of_users if request.user else runner.environment
        bound: Mapping[str, str] = self._grant.env
        if request.own_env:
            own = dict(_entry(each) for each in request.own_env)
            check_env(own)
            bound = self._grant.env.under(own)
        return environment.terminal_entries(bound) if request.flags & RunFlag.PTY else environment.entries(bound)


def _entry(encoded: bytes) -> tuple[str, str]:
    name, equals, value = decode_text(encoded).partition("=")
    if not equals:
        raise InvalidRequest("an environment entry without a value")
    return name, value


def _guest_of(sandbox: Sandbox) -> GuestSandbox:
    while sandbox.inner is not sandbox:
        sandbox = sandbox.inner
    if not isinstance(sandbox, GuestSandbox) or sandbox.runner is None:
        hint = 'serve a substrate with path="guest", which is the default'
        raise Unsupported("a server needs sandboxes whose actions go through one guest", hint=hint)
    return sandbox


async def _destroy(sandbox: Sandbox) -> None:
    try:
        await sandbox.destroy()
    except DutyfreeError as error:
        context = {"message": "a sandbox whose guest failed could not be destroyed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
