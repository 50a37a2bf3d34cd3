"""Declares probes, and gives a probe's check its tools."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.contract import Sandbox, Substrate
from dutyfree.failure import await_on_failure
from dutyfree.model import Action, Capability, Command, Isolation, Observation, SandboxSpec, User
from dutyfree.testing import expect
from dutyfree.testing.isolation.program import Answer, Verdict, parse_answer, read_answer

ASK_TIMEOUT_S = 20.0
ENVIRONMENT_SECRET = "DUTYFREE_PROBE_SECRET"
"""A variable that the prober sets in the host process before the substrate is opened."""


Broken = expect.Broken
"""The substrate did not keep a promise; the message says how."""
NotApplicable = expect.NotRun
"""The promise cannot be tested on this machine or in this sandbox; the message says why."""


class Recorded(Exception):
    """Nothing is promised in this sandbox; says what was seen."""


@dataclass(slots=True)
class Scene:
    """The tools of one probe: a new sandbox with the probe program in it."""

    substrate: Substrate
    sandbox: Sandbox
    spec: SandboxSpec
    program: Path
    """The probe program on the host."""
    home: str
    """A directory in the sandbox with the probe program and nothing else."""
    secret: str
    """The value of ENVIRONMENT_SECRET."""
    notes: list[str] = field(default_factory=list)
    token: str = field(default_factory=lambda: f"dutyfree-probe-{secrets.token_hex(8)}")
    """A unique word for names and contents that a probe searches for afterwards."""

    def note(self, text: str) -> None:
        """Add a note to the report."""
        self.notes.append(text)

    def filled_in(self, question: Iterable[str]) -> list[str]:
        """The question with `{home}` and `{token}` replaced by this scene's."""
        return [word.replace("{home}", self.home).replace("{token}", self.token) for word in question]

    async def run(self, command: Command, *, timeout_s: float = ASK_TIMEOUT_S) -> Observation:
        """Run a command in the sandbox."""
        return await self.sandbox.run(Action(command, timeout_s=timeout_s))

    async def ask(self, *question: str, of: Sandbox | None = None, user: User | None = None) -> Answer:
        """Run the probe program in the sandbox, or in another one of the same substrate."""
        action = Action([f"{self.home}/probe", *question], timeout_s=ASK_TIMEOUT_S, user=user)
        return _raise_if_broken(read_answer(" ".join(question), await (of or self.sandbox).run(action)))

    async def ask_host(self, *question: str) -> Answer:
        """Run the probe program on the host, as this user."""
        process = await asyncio.create_subprocess_exec(
            self.program, *question, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        stdout, _ = await asyncio.wait_for(process.communicate(), ASK_TIMEOUT_S)
        code = process.returncode or 0
        return _raise_if_broken(parse_answer(" ".join(question), stdout, -code if code < 0 else None))

    async def must_deny(self, *question: str) -> None:
        """Raise Broken unless the sandbox refuses. A note says so if the host refuses in the same way."""
        answer = await self.ask(*question)
        if answer.verdict is not Verdict.DENIED:
            raise Broken(str(answer))
        outside = await self.ask_host(*(word.replace(self.home, str(self.program.parent)) for word in question))
        same_on_host = (outside.verdict, outside.text) == (answer.verdict, answer.text)
        self.note(f"{answer} (weak evidence: the host refuses it, too)" if same_on_host else f"{answer}")

    async def must_allow(self, *question: str) -> None:
        """Raise Broken unless the sandbox allows it."""
        answer = await self.ask(*question)
        if answer.verdict is not Verdict.ALLOWED:
            raise Broken(str(answer))

    async def value_of(self, *question: str) -> str:
        """The value that the probe program found."""
        answer = await self.ask(*question)
        if answer.verdict is not Verdict.VALUE:
            raise Broken(str(answer))
        return answer.text

    async def another(self) -> Sandbox:
        """Create a second sandbox with the same spec and the probe program; the caller destroys it."""
        sandbox = await self.substrate.create(self.spec)
        async with await_on_failure(sandbox.destroy):
            await install(sandbox, self.program, self.home)
        return sandbox

    async def must_answer(self) -> None:
        """Raise Broken unless the sandbox still runs commands."""
        seen = await self.run(["/bin/sh", "-c", "echo alive"])
        if seen.text != "alive\n":
            raise Broken(f"the sandbox no longer runs commands: exit {seen.exit_code}, {seen.stderr[:200]!r}")

    def needs_limit(self, word: str) -> None:
        """Raise NotApplicable if the sandbox reports that it does not enforce the limit with `word` in its name."""
        for gap in self.sandbox.unenforced:
            if word in gap.what:
                raise NotApplicable(f"the sandbox does not enforce {gap.what}: {gap.reason}")


def _raise_if_broken(answer: Answer) -> Answer:
    if answer.verdict is Verdict.BROKEN:
        raise Broken(str(answer))
    return answer


async def install(sandbox: Sandbox, program: Path, home: str) -> None:
    """Put the probe program into a sandbox."""
    content = await asyncio.to_thread(program.read_bytes)
    await sandbox.files.mkdir(home)
    await sandbox.files.write(f"{home}/probe", content, mode=0o755)


Check = Callable[[Scene], Awaitable[None]]
"""Returns when the promise was kept; raises Broken, NotApplicable or Recorded otherwise."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One promise about sandboxes, and the function that tests it."""

    id: str
    promise: str
    check: Check
    level: Isolation
    """The lowest isolation level at which the promise must hold."""
    needs: frozenset[Capability] = frozenset()
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    shared_kernel: bool = False
    """The probe protects the kernel that sandbox and host share; it does not apply to a sandbox with its own kernel."""
    unsafe: bool = False
    """The probe harms the host if the isolation is missing, so it never runs below its level."""
    recorded: bool = False
    """Nothing is promised: the report only says what the probe saw."""


class Topic:
    """A named group of probes, in the order in which they were declared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.probes: list[Probe] = []

    def probe(
        self,
        name: str,
        promise: str,
        level: Isolation,
        *,
        needs: Iterable[Capability] = (),
        spec: SandboxSpec | None = None,
        shared_kernel: bool = False,
        unsafe: bool = False,
        recorded: bool = False,
    ) -> Callable[[Check], Check]:
        """Declare the decorated function as a probe."""

        def declare(check: Check) -> Check:
            probe = Probe(
                id=f"{self.name}.{name}",
                promise=promise,
                check=check,
                level=level,
                needs=frozenset(needs),
                spec=spec or SandboxSpec(),
                shared_kernel=shared_kernel,
                unsafe=unsafe,
                recorded=recorded,
            )
            self.probes.append(probe)
            return check

        return declare

    def denies(
        self, name: str, promise: str, level: Isolation, *question: str, spec: SandboxSpec | None = None
    ) -> None:
        """Declare a probe: the shared kernel must refuse this question (`{home}` and `{token}` are filled in)."""

        @self.probe(name, promise, level, shared_kernel=True, spec=spec)
        async def check(scene: Scene) -> None:
            await scene.must_deny(*scene.filled_in(question))

    def allows(self, name: str, promise: str, *question: str) -> None:
        """Declare a probe: at every isolation level the answer to this question must be `allowed`."""

        @self.probe(name, promise, Isolation.NONE)
        async def check(scene: Scene) -> None:
            await scene.must_allow(*scene.filled_in(question))
