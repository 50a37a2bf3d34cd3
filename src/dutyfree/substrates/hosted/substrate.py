"""The hosted substrate: sandboxes of a service that speaks E2B's API, labelled with our claim, renewed while we live.

The SDK is an optional dependency: the modules that import it are imported by `open`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from dutyfree import claims, native
from dutyfree.checked import seconds, whole
from dutyfree.contract import Sandbox, SpanListener
from dutyfree.errors import (
    DutyfreeError,
    InvalidRequest,
    SandboxGone,
    SubstrateFailed,
    SubstrateUnavailable,
    Unauthenticated,
)
from dutyfree.failure import await_on_failure
from dutyfree.guest import DEFAULT_ENVIRONMENT
from dutyfree.model import ActionPath, Capability, Isolation, Phase, SandboxSpec, Unenforced
from dutyfree.substrates.engine import EngineSubstrate, Marks
from dutyfree.substrates.hosted.body import HostedBody
from dutyfree.substrates.shared_task import run_to_end

if TYPE_CHECKING:
    from e2b import AsyncSandbox

    from dutyfree.substrates.hosted.service import Service

GUEST: Final = "/tmp/.dutyfree-guest"
"""Where the guest is carried to in the service's sandboxes. It is no longer there once it runs."""
_TELL: Final = r"""printf '%s\0' "$PWD" >&2; env -0 >&2; printf '\0' >&2; """
_START: Final = f"chmod 700 {GUEST} && exec 9<{GUEST} && rm {GUEST} && exec /proc/self/fd/9 --stdio"
_HOSTNAME: Final = "/proc/sys/kernel/hostname"
MIN_TIMEOUT_S: Final = 15
MAX_TIMEOUT_S: Final = 24 * 3600
_RENEWALS_IN_A_TIMEOUT: Final = 3
_RENEWALS_AT_ONCE: Final = 16
_SHELL_OWN: Final = ("_", "OLDPWD", "PWD", "SHLVL")
_REASON: Final = "the service's template decides it, and the SDK has no way to ask for it"
_BOTH: Final = frozenset(
    {Capability.FILES, Capability.PRIVATE_FILES, Capability.DENY_NETWORK, Capability.BRIDGE_NETWORK}
)
_WITH_GUEST: Final = _BOTH | {
    *(Capability.SESSIONS, Capability.TERMINALS, Capability.WATCH, Capability.KILL_TREE, Capability.RESET),
    Capability.PORTS,
}


class HostedSubstrate(EngineSubstrate):
    """On the path `guest` our guest is carried into each sandbox; on `exec` each action is a call of the SDK."""

    name = "hosted"

    def __init__(
        self,
        *,
        path: ActionPath | str = ActionPath.GUEST,
        api_url: str | None = None,
        sandbox_url: str | None = None,
        domain: str | None = None,
        api_key: str | None = None,
        template: str | None = None,
        timeout_s: int = 120,
        request_timeout_s: float = 60.0,
        user: str = "root",
        stdin: Literal["stream", "calls"] = "stream",
        isolation: str = "none",
    ) -> None:
        """`api_url`, `sandbox_url`, `domain`, `api_key`: as the SDK has them; by default from E2B_API_URL and so on.

        `template`: what sandboxes start from; by default the service's own default. `timeout_s`: a sandbox whose owner
        was killed lives that long; it is renewed meanwhile. `request_timeout_s`: the limit for each call. `user`: the
        sandbox's user that actions run as. `stdin`: how the guest's stream is sent: `stream`, one call for all of it,
        or `calls`, one for each piece, for services without `StreamInput`. `isolation`: the wall that you know the
        service to have; without it none is claimed.
        """
        super().__init__(path=path)
        if stdin not in ("stream", "calls"):
            raise InvalidRequest(f"there is no way to send called {stdin!r:.80}", hint="there are: stream, calls")
        labels = {each.label: each for each in Isolation}
        if isolation not in labels:
            raise InvalidRequest(f"there is no isolation {isolation!r:.80}", hint=f"there are: {', '.join(labels)}")
        self.isolation = labels[isolation]
        whole("timeout_s", timeout_s, least=MIN_TIMEOUT_S)
        if timeout_s > MAX_TIMEOUT_S:
            raise InvalidRequest(f"timeout_s is more than {MAX_TIMEOUT_S}")
        self._timeout_s = timeout_s
        self._request_timeout_s = seconds("request_timeout_s", request_timeout_s, most_s=3600.0)
        self._template = template
        self._user = user
        self._stdin = stdin
        self._connection = {
            "api_url": api_url,
            "sandbox_url": sandbox_url or (None if api_url is None else os.environ.get("E2B_SANDBOX_URL") or api_url),
            "domain": domain,
            "api_key": api_key,
        }
        self._service: Service | None = None
        self._claim: claims.Claim | None = None
        self._kind = ""
        self._guest = b""
        self._living: dict[str, HostedBody | None] = {}
        """The service's sandboxes by id; those of the exec path have no body."""
        self._renewing: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        if self.path is ActionPath.EXEC:
            return _BOTH
        return _WITH_GUEST | {Capability.USERS} if self._user == "root" else _WITH_GUEST

    @property
    def version(self) -> str:
        if self._service is None:
            return ""
        from importlib.metadata import version

        return f"e2b {version('e2b')}"

    @property
    def has_default_image(self) -> bool:
        return True  # the service's templates

    @property
    def without_mounts(self) -> str:
        return "a sandbox of a hosted service has no file system in common with this machine"

    async def open(self) -> None:
        if self._service is not None:
            return
        guest = native.guest_path()
        service = self._make_service()
        try:
            await service.check()
        except Unauthenticated as error:
            raise SubstrateUnavailable(error.message, hint=error.hint) from error
        except DutyfreeError as error:
            hint = "is it there, and do api_url (E2B_API_URL) or domain (E2B_DOMAIN) name it?"
            raise SubstrateUnavailable(error.message, hint=error.hint or hint) from error
        self._guest = await asyncio.to_thread(guest.read_bytes)
        await self._sweep(service)
        self._claim = await asyncio.to_thread(claims.claim, self._kind)
        self._service = service
        self._renewing = asyncio.create_task(self._renew(service))

    def _make_service(self) -> Service:
        try:
            from e2b import ConnectionConfig

            from dutyfree.substrates.hosted.service import Service
        except ImportError as error:
            hint = "install it: pip install 'dutyfree[hosted]'"
            raise SubstrateUnavailable(f"the package e2b cannot be used: {error}", hint=hint) from error
        given: dict[str, Any] = {name: value for name, value in self._connection.items() if value is not None}
        config = ConnectionConfig(**given)
        if config.api_key is None:
            raise SubstrateUnavailable(
                f"there is no key for the service at {config.api_url}", hint="give the option api_key, or E2B_API_KEY"
            )
        # Claims of one service are not those of another: only what a service has can be removed from it.
        self._kind = f"hosted-{hashlib.sha256(config.api_url.encode()).hexdigest()[:12]}"
        # A service that is full says so at once: the caller, or the pool, decides how long to wait.
        return Service(
            self._template, self._timeout_s, given | {"request_timeout": self._request_timeout_s, "retries": 0}
        )

    async def _sweep(self, service: Service) -> None:
        """End the sandboxes of dead processes of this machine, by the claims that they left."""
        for directory in await asyncio.to_thread(claims.dead, self._kind):
            try:
                for sandbox_id in await service.made_by(directory.name):
                    await service.kill(sandbox_id)
            except DutyfreeError:
                continue  # they end with their timeout; the next substrate tries again
            await asyncio.to_thread(claims.forget, directory)

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        if self.path is ActionPath.GUEST:
            return await super().create(spec, on_span)
        from dutyfree.substrates.hosted.exec_sandbox import ExecSandbox

        self.check(spec)
        marks = Marks()
        remote = await self._make_remote(spec, marks)
        with marks.step(Phase.READY, "handle"):  # the SDK's users call it ready once `create` has returned
            sandbox = ExecSandbox(
                self, remote, user=self._user, request_timeout_s=self._request_timeout_s,
                unenforced=_unenforced(spec), on_span=on_span,
            )  # fmt: skip
        self._alive.add(sandbox)
        if on_span is not None:
            for span in marks.spans(sandbox.id):
                on_span(span)
        return sandbox

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> HostedBody:
        remote = await self._make_remote(spec, marks)
        async with await_on_failure(self.end, remote.sandbox_id):
            return await self._carry_in(remote, spec, marks)

    async def _make_remote(self, spec: SandboxSpec, marks: Marks) -> AsyncSandbox:
        service, claim = self._opened()
        with marks.step(Phase.CREATE, "call"):
            remote = await self._call_create(service, spec, claim)
        self._living[remote.sandbox_id] = None
        if self._service is not service:
            await self.end(remote.sandbox_id, service)
            raise SubstrateFailed("the substrate was closed during a creation")
        return remote

    async def _call_create(self, service: Service, spec: SandboxSpec, claim: str) -> AsyncSandbox:
        """The call is not cancelled with its caller: a sandbox whose id nobody knows would live until its timeout."""
        creation = asyncio.create_task(service.create(spec, claim))
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            await asyncio.wait([creation])
            if creation.exception() is None:
                await self.end(creation.result().sandbox_id, service)
            raise

    async def _carry_in(self, remote: AsyncSandbox, spec: SandboxSpec, marks: Marks) -> HostedBody:
        from dutyfree.substrates.hosted.service import translated
        from dutyfree.substrates.hosted.stream import open_channel

        with marks.step(Phase.READY, "guest carried in"):
            async with translated("take the guest"):
                await remote.files.write(GUEST, self._guest, user=self._user)
        with marks.step(Phase.READY, "guest started"):
            # A login shell, as the SDK's own calls have: actions find the environment that its users know.
            argv = ("/bin/bash", "-l", "-c", _naming(spec) + _TELL + _START)
            channel, (cwd, *entries) = await open_channel(
                remote, argv, user=self._user, send=self._stdin, request_timeout_s=self._request_timeout_s
            )
        env = {**DEFAULT_ENVIRONMENT, **_environment(entries), **spec.env}
        body = HostedBody(remote.sandbox_id, channel, env=env, cwd=cwd, unenforced=_unenforced(spec), end=self.end)
        self._living[remote.sandbox_id] = body
        return body

    async def end(self, sandbox_id: str, service: Service | None = None) -> None:
        """Kill the service's sandbox of this id. Idempotent."""
        service = service or self._opened()[0]
        await run_to_end(service.kill(sandbox_id))
        self._living.pop(sandbox_id, None)

    async def _renew(self, service: Service) -> None:
        places = asyncio.Semaphore(_RENEWALS_AT_ONCE)

        async def renew(sandbox_id: str) -> None:
            async with places:
                try:
                    await service.renew(sandbox_id)
                except SandboxGone:
                    body = self._living.get(sandbox_id)
                    if body is not None:
                        body.channel.fail(SubstrateFailed("the service has ended the sandbox"))
                except DutyfreeError:
                    pass  # the next round tries again, before the sandbox's time is over

        while True:
            await asyncio.sleep(self._timeout_s / _RENEWALS_IN_A_TIMEOUT)
            await asyncio.gather(*(renew(each) for each in tuple(self._living)))

    async def let_go(self) -> None:
        service, self._service = self._service, None
        if service is None:
            return
        from dutyfree.substrates.hosted.stream import wait_for_carriers

        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        await wait_for_carriers()
        claim, self._claim = self._claim, None
        if claim is not None:
            # With sandboxes that could not be ended, the claim's directory stays: by it the next substrate finds them.
            await asyncio.to_thread(claim.abandon if self._living else claim.release)
        self._living.clear()

    def _opened(self) -> tuple[Service, str]:
        if self._service is None or self._claim is None:
            raise InvalidRequest("the substrate is not open")
        return self._service, self._claim.name


def _naming(spec: SandboxSpec) -> str:
    """Set the hostname that was asked for, where the service lets its sandboxes do so."""
    if spec.hostname == SandboxSpec().hostname:
        return ""
    return f"{{ echo {spec.hostname} > {_HOSTNAME}; }} 2>/dev/null; "


def _environment(entries: list[str]) -> dict[str, str]:
    pairs = (each.partition("=") for each in entries)
    return {name: value for name, _, value in pairs if name not in _SHELL_OWN}


def _unenforced(spec: SandboxSpec) -> tuple[Unenforced, ...]:
    resources = spec.resources
    asked = {
        Capability.LIMIT_MEMORY: resources.memory_bytes is not None,
        Capability.LIMIT_CPU: resources.cpus is not None,
        Capability.LIMIT_PIDS: resources.pids is not None,
        Capability.LIMIT_DISK: resources.disk_bytes is not None,
    }
    return tuple(Unenforced(what, _REASON) for what, wanted in asked.items() if wanted)
