"""How a probe is declared, and what its check can do."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.contract import Sandbox, Substrate
from dutyfree.model import Action, Capability, Command, Isolation, Observation, SandboxSpec
from dutyfree.testing.isolation.program import Answer, Verdict, parse_answer, read_answer

ASK_TIMEOUT_S = 20.0
ENVIRONMENT_SECRET = "DUTYFREE_PROBE_SECRET"
"""A variable that the prober sets in the host process before the substrate is opened."""


class Broken(Exception):
    """The promise was not kept; says how."""


class NotApplicable(Exception):
    """The promise cannot be tried on this machine or in this sandbox; says why."""


class Recorded(Exception):
    """Nothing is promised in this sandbox; says what was seen."""


@dataclass(slots=True)
class Scene:
    """One probe's stage: a fresh sandbox with the probe program in it."""

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
    """Unique, for names and contents that are looked for afterwards."""

    def note(self, text: str) -> None:
        """Add something that the reader of the report should know."""
        self.notes.append(text)

    def filled_in(self, question: Iterable[str]) -> list[str]:
        """The question with this scene's home and token in it."""
        return [word.replace("{home}", self.home).replace("{token}", self.token) for word in question]

    async def run(self, command: Command, *, timeout_s: float = ASK_TIMEOUT_S) -> Observation:
        """Run a command in the sandbox."""
        return await self.sandbox.run(Action(command, timeout_s=timeout_s))

    async def ask(self, *question: str, of: Sandbox | None = None) -> Answer:
        """Run the probe program in the sandbox, or in another one of the same substrate."""
        action = Action([f"{self.home}/probe", *question], timeout_s=ASK_TIMEOUT_S)
        return _asked(read_answer(" ".join(question), await (of or self.sandbox).run(action)))

    async def ask_host(self, *question: str) -> Answer:
        """Run the probe program outside, as this user."""
        process = await asyncio.create_subprocess_exec(
            self.program, *question, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        stdout, _ = await asyncio.wait_for(process.communicate(), ASK_TIMEOUT_S)
        code = process.returncode or 0
        return _asked(parse_answer(" ".join(question), stdout, -code if code < 0 else None))

    async def must_deny(self, *question: str) -> None:
        """The sandbox refuses; a note says when that tells little, because outside it is refused in the same way."""
        answer = await self.ask(*question)
        if answer.verdict is not Verdict.DENIED:
            raise Broken(str(answer))
        outside = await self.ask_host(*(word.replace(self.home, str(self.program.parent)) for word in question))
        tells = (outside.verdict, outside.text) != (answer.verdict, answer.text)
        self.note(f"{answer}" if tells else f"{answer} (tells little: outside it is {outside.verdict} {outside.text})")

    async def must_allow(self, *question: str) -> None:
        """The sandbox lets it happen."""
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
        """A second sandbox, alike and with the probe program in the same place; the caller destroys it."""
        sandbox = await self.substrate.create(self.spec)
        try:
            await install(sandbox, self.program, self.home)
        except BaseException:
            await sandbox.destroy()
            raise
        return sandbox

    async def must_answer(self) -> None:
        """The sandbox still runs commands."""
        seen = await self.run(["/bin/sh", "-c", "echo alive"])
        if seen.text != "alive\n":
            raise Broken(f"afterwards the sandbox does not answer: exit {seen.exit_code}, {seen.stderr[:200]!r}")

    def needs_limit(self, word: str) -> None:
        """Raise NotApplicable when the sandbox says that it does not enforce the limit that has `word` in its name."""
        for gap in self.sandbox.unenforced:
            if word in gap.what:
                raise NotApplicable(f"the sandbox does not enforce {gap.what}: {gap.reason}")


def _asked(answer: Answer) -> Answer:
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
    """One promise about sandboxes, and how to try it."""

    id: str
    promise: str
    check: Check
    level: Isolation
    """The lowest claim at which the promise must hold."""
    needs: frozenset[Capability] = frozenset()
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    shared_kernel: bool = False
    """It protects the kernel that sandbox and host share; to one of its own a sandbox may do what it likes."""
    unsafe: bool = False
    """It would harm the host if the wall were not there, so that it is never run below its level."""
    recorded: bool = False
    """There is no promise to break: the report says what was seen."""


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
        """Declare the decorated check as a probe."""

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
        """Declare that the shared kernel refuses one question; `{home}` and `{token}` are the scene's."""

        @self.probe(name, promise, level, shared_kernel=True, spec=spec)
        async def check(scene: Scene) -> None:
            await scene.must_deny(*scene.filled_in(question))

    def allows(self, name: str, promise: str, *question: str) -> None:
        """Declare that one question is answered with `allowed` at every level."""

        @self.probe(name, promise, Isolation.NONE)
        async def check(scene: Scene) -> None:
            await scene.must_allow(*scene.filled_in(question))
