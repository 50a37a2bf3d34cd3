"""The guest agent: processes in the sandbox can neither control nor damage it."""

from __future__ import annotations

from pathlib import Path

from dutyfree.errors import InfraFailed, SandboxGone
from dutyfree.model import Capability, Isolation
from dutyfree.native import guest_path
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

GUEST = Topic("guest")
GUEST_NAME = "dutyfree-guest"


@GUEST.probe("descriptors", "a command has only its three standard descriptors", Isolation.NONE)
async def descriptors(scene: Scene) -> None:
    seen = await scene.value_of("open-descriptors")
    if seen != "0 1 2":
        raise Broken(f"a command has the descriptors {seen}")


@GUEST.probe(
    "session-descriptors",
    "a session's command has only its three standard descriptors",
    Isolation.NONE,
    needs=[Capability.SESSIONS],
)
async def session_descriptors(scene: Scene) -> None:
    async with await scene.sandbox.session() as shell:
        seen = await shell.run(f"{scene.home}/probe open-descriptors", timeout_s=20)
    if seen.text != "value 0 1 2\n":
        raise Broken(f"a session's command printed {seen.text[:200]!r}")


@GUEST.probe(
    "terminal-descriptors",
    "a terminal's command has only its three standard descriptors",
    Isolation.NONE,
    needs=[Capability.TERMINALS],
)
async def terminal_descriptors(scene: Scene) -> None:
    async with await scene.sandbox.terminal([f"{scene.home}/probe", "open-descriptors"]) as screen:
        shown = b""
        while chunk := await screen.read():
            shown = (shown + chunk)[:4096]
    if shown.strip() != b"value 0 1 2":
        raise Broken(f"a terminal's command printed {shown[:200]!r}")


def _denies_on_guest(name: str, promise: str, question: str) -> None:
    @GUEST.probe(name, promise, Isolation.CONTAINER)
    async def check(scene: Scene) -> None:
        answer = await scene.ask(question, await _guest_pid(scene))
        if answer.verdict is not Verdict.DENIED:
            raise Broken(str(answer))
        scene.note(str(answer))


async def _guest_pid(scene: Scene) -> str:
    """The guest's pid: 1 if the sandbox has its own pid namespace, otherwise the pid of an ancestor with its name."""
    if scene.substrate.isolation >= Isolation.NAMESPACE:
        return "1"
    answer = await scene.ask("find-named", GUEST_NAME)
    if answer.verdict is not Verdict.VALUE:
        raise NotApplicable("no guest agent is visible in the sandbox")
    return answer.text


_denies_on_guest("look-at-descriptors", "the guest's descriptors cannot be listed", "look-at-descriptors")
_denies_on_guest("steal-descriptor", "the guest's descriptors cannot be taken", "steal-descriptor")
_denies_on_guest("trace", "the guest cannot be traced", "trace")
_denies_on_guest("memory", "the guest's memory cannot be read with process_vm_readv", "read-memory")
_denies_on_guest("open-memory", "the guest's /proc/PID/mem cannot be opened", "open-memory")
_denies_on_guest("program", "the guest's program cannot be written", "write-program")


@GUEST.probe(
    "re-entry",
    "a script that re-enters the guest's program cannot change it, not even while the guest starts programs",
    Isolation.NAMESPACE,
    unsafe=True,
)
async def re_entry(scene: Scene) -> None:
    program = guest_path()
    before = program.read_bytes()
    script = f"{scene.home}/script"
    await scene.sandbox.files.write(script, b"#!/proc/self/exe\n", mode=0o755)
    for arguments in ((), ("--stdio",), ("--fd", "1")):
        await scene.run([script, *arguments], timeout_s=2)
    attack = f"for i in 1 2 3 4 5 6 7 8; do {script} </dev/null & {scene.home}/probe overwrite-program $!; done; wait"
    await scene.run(f"{attack}; {scene.home}/probe overwrite-program 1", timeout_s=10)
    if program.read_bytes() != before:
        _restore(program, before)
        raise Broken(f"the sandbox changed {program} on the host")
    await scene.must_answer()


def _restore(program: Path, content: bytes) -> None:
    """Undo the damage: later probes need the guest's program."""
    program.unlink()
    program.write_bytes(content)
    program.chmod(0o755)


def _survives_signal(name: str, promise: str, *question: str) -> None:
    @GUEST.probe(name, promise, Isolation.NAMESPACE, unsafe=True)
    async def check(scene: Scene) -> None:
        try:
            await scene.run([f"{scene.home}/probe", *question], timeout_s=5)
            await scene.must_answer()
            scene.note("the sandbox is alive")
        except (InfraFailed, SandboxGone) as error:
            scene.note(f"the sandbox died and raised {type(error).__name__}")


_survives_signal(
    "kill", "after SIGKILL to the guest the sandbox works, or raises a typed error", "signal-process", "1", "9"
)
_survives_signal(
    "kill-all", "after SIGKILL to all processes the sandbox works, or raises a typed error", "signal-process", "-1", "9"
)
_survives_signal(
    "stop-all",
    "after SIGSTOP to all processes the sandbox works, or raises a typed error",
    "signal-process",
    "-1",
    "19",
)
_survives_signal(
    "every-signal", "after every signal to the guest the sandbox works, or raises a typed error", "every-signal", "1"
)
