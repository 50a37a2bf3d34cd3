"""Everyday work: isolation must not break ordinary programs."""

from __future__ import annotations

from dutyfree.model import Capability, Isolation
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic

ORDINARY = Topic("ordinary")

ORDINARY.allows("trace-child", "a program can trace its own child, as debuggers do", "trace-child")
ORDINARY.allows("threads", "a program can start threads", "threads", "64")
ORDINARY.allows("terminals", "a program can make a pseudo-terminal", "terminal-pair")
ORDINARY.allows("shared-memory", "/dev/shm works", "posix-shared-memory", "/{token}")
ORDINARY.allows("devices", "/dev/null, zero, full, random and urandom work", "device-nodes")
ORDINARY.allows("proc", "a process can read its own /proc entries", "open-file", "r", "/proc/self/maps")


@ORDINARY.probe("calls", "the system calls of everyday programs work", Isolation.NONE)
async def calls(scene: Scene) -> None:
    seen = await scene.value_of("everyday-calls")
    if seen != "all":
        raise Broken(seen)


@ORDINARY.probe("processes", "the default process limit allows 500 concurrent processes", Isolation.NONE)
async def processes(scene: Scene) -> None:
    seen = await scene.value_of("many-processes", "500")
    if seen != "500":
        raise Broken(f"{seen} processes could be started")


@ORDINARY.probe("home-and-tmp", "files can be written in the home and temporary directories", Isolation.NONE)
async def home_and_tmp(scene: Scene) -> None:
    name = scene.token
    for place in ('"${HOME:?}"', "/tmp", "/var/tmp"):
        seen = await scene.run(
            f"set -e; cd {place}; echo kept > {name}; mkdir {name}.d; cat {name}; rm -r {name} {name}.d"
        )
        if seen.text != "kept\n":
            raise Broken(f"{place} cannot be written: {seen.stderr[:200]!r}")


@ORDINARY.probe("terminal", "a command on a terminal can open /dev/tty", Isolation.NONE, needs=[Capability.TERMINALS])
async def terminal(scene: Scene) -> None:
    async with await scene.sandbox.terminal([f"{scene.home}/probe", "on-terminal"]) as screen:
        shown = b""
        while chunk := await screen.read():
            shown = (shown + chunk)[:4096]
    if not shown.startswith(b"allowed /dev/pts/"):
        raise Broken(f"the command on a terminal printed {shown[:200]!r}")
    scene.note(shown.decode("utf-8", "replace").strip())


def _tool(name: str, promise: str, line: str, wanted: str) -> None:
    @ORDINARY.probe(name, promise, Isolation.NONE)
    async def check(scene: Scene) -> None:
        if not (await scene.run(f"command -v {name}")).ok:
            raise NotApplicable(f"the sandbox has no {name}")
        seen = await scene.run(f"cd {scene.home} && {line}", timeout_s=60)
        if seen.text != wanted:
            raise Broken(f"exit {seen.exit_code}: {seen.text[:200]!r} {seen.stderr[:300]!r}")


_tool("bash", "bash works", "bash -c 'a=(1 2 3); cat <(echo ${#a[@]})'", "3\n")
_tool(
    "python3",
    "Python works, with processes, threads and sockets",
    "python3 -c 'import concurrent.futures as f, multiprocessing as m, tempfile, socket, ssl\n"
    'm.set_start_method("fork"); socket.socketpair(); tempfile.TemporaryFile()\n'
    "with f.ProcessPoolExecutor(2) as p: print(sum(p.map(abs, [-1, -2])))'",
    "3\n",
)
_tool(
    "git",
    "git works",
    "git init -q r && cd r && echo x > f && git add f"
    " && git -c user.name=p -c user.email=p@example.org commit -q -m one && git log --format=%s",
    "one\n",
)
_tool(
    "gcc",
    "a compiler works",
    "printf 'int main(void) { return 7; }' > a.c && gcc -o a.out a.c && { ./a.out; echo $?; }",
    "7\n",
)
