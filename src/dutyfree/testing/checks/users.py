"""Users: actions, sessions, terminals and file operations as a user of the sandbox."""

from __future__ import annotations

import asyncio
import errno

from dutyfree.contract import Sandbox
from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.model import Action, Capability, Observation, SandboxSpec, User
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import ACTION_TIMEOUT_S, Context, run

NEEDS = (Capability.USERS,)
NAME, UID, GID = "conformance", 4711, 4712
HOME = "/home/conformance"
UNLISTED = 4999
PREPARE = f"""
echo 'conformance-group:x:{GID}:' >> /etc/group
echo 'conformance-more:x:4713:root,{NAME}' >> /etc/group
echo '{NAME}:x:{UID}:{GID}:A user:{HOME}:/bin/sh' >> /etc/passwd
mkdir -p {HOME} && chown {UID}:{GID} {HOME} && umask 077 && echo private > /etc/conformance-private
"""


async def _prepared(context: Context, spec: SandboxSpec | None = None) -> Sandbox:
    """A sandbox with the user, its home, and a private file of root."""
    box = await context.sandbox(spec)
    expect.exited(await run(box, PREPARE))
    return box


async def _as(box: Sandbox, command: str, user: User = NAME, **options: object) -> Observation:
    return await box.run(Action(command, user=user, **{"timeout_s": ACTION_TIMEOUT_S, **options}))  # type: ignore[arg-type]


@check("users.identity", "an action has the ids, the groups and the environment of its user", needs=NEEDS)
async def identity(context: Context) -> None:
    box = await _prepared(context)
    for user in (NAME, UID, str(UID)):
        seen = await _as(box, "id -u; id -g; id -G; echo $HOME $USER $LOGNAME $SHELL; pwd", user)
        expect.exited(seen)
        wanted = f"{UID}\n{GID}\n{GID} 4713\n{HOME} {NAME} {NAME} /bin/sh\n{HOME}\n"
        expect.equal(seen.text, wanted, f"what an action as {user!r} sees")
    argv = await box.run(Action(["id", "-u"], user=NAME))
    expect.equal(argv.text, f"{UID}\n", "the uid of an argv")
    expect.equal((await run(box, "id -u")).text, "0\n", "the uid of the next action without a user")


@check("users.groups", "a group that is asked for is the action's only group", needs=NEEDS)
async def groups(context: Context) -> None:
    box = await _prepared(context)
    for user, wanted in ((f"{NAME}:conformance-more", "4713"), (f"{UID}:77", "77"), (f"{UNLISTED}:78", "78")):
        expect.equal((await _as(box, "id -g; id -G", user)).text, f"{wanted}\n{wanted}\n", f"the groups of {user!r}")


@check("users.unlisted", "a uid that passwd does not list has its own group and no home", needs=NEEDS)
async def unlisted(context: Context) -> None:
    box = await _prepared(context)
    seen = await _as(box, "id -u; id -G; echo $HOME-$USER; pwd", UNLISTED)
    expect.equal(seen.text, f"{UNLISTED}\n{UNLISTED}\n/-\n/\n", "what an action of an unlisted uid sees")


@check("users.environment", "an entry of the action's own environment is not replaced by its user's", needs=NEEDS)
async def environment(context: Context) -> None:
    box = await _prepared(context, SandboxSpec(env={"SHELL": "/bin/other"}))
    seen = await _as(box, "echo $HOME $USER $SHELL", env={"HOME": "/tmp"})
    expect.equal(seen.text, f"/tmp {NAME} /bin/other\n", "HOME of the action, USER of the user, SHELL of the sandbox")


@check("users.unknown", "a user or a group that the sandbox does not have is InvalidRequest", needs=NEEDS)
async def unknown(context: Context) -> None:
    box = await _prepared(context)
    for user in ("nosuchuser", f"{NAME}:nosuchgroup"):
        with expect.raises(InvalidRequest, what=f"an action as {user!r}"):
            await _as(box, "true", user)
        with expect.raises(InvalidRequest, what=f"a file operation as {user!r}"):
            await box.files.as_user(user).read("/etc/passwd")
    with expect.raises(InvalidRequest, what="a session as an unknown user"):
        await box.session(user="nosuchuser")
    with expect.raises(InvalidRequest, what="a terminal as an unknown user"):
        await box.terminal("true", user="nosuchuser")
    with expect.raises(InvalidRequest, what="a directory that the user may not enter"):
        expect.exited(await run(box, "mkdir -m 700 /etc/conformance-closed"))
        await _as(box, "true", cwd="/etc/conformance-closed")
    expect.exited(await _as(box, "true"))


@check("users.rights", "an action has its user's rights, and what it makes belongs to its user", needs=NEEDS)
async def rights(context: Context) -> None:
    box = await _prepared(context)
    seen = await _as(box, "cat /etc/conformance-private || echo refused; echo x > made; grep Cap /proc/self/status")
    expect.true(seen.text.startswith("refused\n"), f"a private file of root was read: {seen.text!r}")
    lines = dict(line.split() for line in seen.text.splitlines()[1:])
    held = [name for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:") if int(lines.get(name, "0"), 16)]
    expect.equal(held, [], "the sets of capabilities that are not empty")
    made = await box.files.stat(f"{HOME}/made")
    expect.equal((made.uid, made.gid), (UID, GID), "the owner of a file that the action made")
    named = await _as(box, "echo out > /dev/stdout; echo err > /dev/stderr")
    expect.equal((named.stdout, named.stderr), (b"out\n", b"err\n"), "what was written to the streams by name")


@check("users.files", "file operations as a user have its rights and make files of its own", needs=NEEDS)
async def files(context: Context) -> None:
    box = await _prepared(context)
    mine = box.files.as_user(NAME)
    with expect.raises(FileFailed, what="reading a private file of root") as caught:
        await mine.read("/etc/conformance-private")
    expect.equal(getattr(caught[0], "errno", 0), errno.EACCES, "the errno of the refusal")
    for refused in (mine.write("/etc/made", b""), mine.remove("/etc/conformance-private"), mine.mkdir("/made")):
        with expect.raises(FileFailed, what="a change outside the user's home"):
            await refused
    await mine.write(f"{HOME}/a/b/file", b"content")
    await mine.append(f"{HOME}/a/b/file", b"!")
    expect.equal(await mine.read(f"{HOME}/a/b/file"), b"content!", "the content")
    for path in ("a", "a/b", "a/b/file"):
        info = await box.files.stat(f"{HOME}/{path}")
        expect.equal((info.uid, info.gid), (UID, GID), f"the owner of {path}")
    await box.files.write(f"{HOME}/roots", b"")
    expect.equal((await box.files.stat(f"{HOME}/roots")).uid, 0, "the owner of what files without a user make")


@check("users.transfers", "an uploaded tree belongs to the user, and only what it may read is downloaded", needs=NEEDS)
async def transfers(context: Context) -> None:
    box = await _prepared(context)
    folder = context.folder()
    (folder / "tree").mkdir()
    (folder / "tree" / "file").write_bytes(b"uploaded")
    mine = box.files.as_user(NAME)
    await mine.upload(folder / "tree", f"{HOME}/tree")
    owners = {info.name: (info.uid, info.gid) for info in await box.files.list(f"{HOME}/tree")}
    expect.equal(owners, {"file": (UID, GID)}, "the owners of uploaded files")
    await mine.download(f"{HOME}/tree", folder / "back")
    expect.equal((folder / "back" / "file").read_bytes(), b"uploaded", "the downloaded file")
    with expect.raises(FileFailed, what="downloading a private file of root"):
        await mine.download("/etc/conformance-private", folder / "private")


@check("users.session", "all lines of a session run as its user", needs=(*NEEDS, Capability.SESSIONS))
async def session(context: Context) -> None:
    box = await _prepared(context)
    async with await box.session(user=NAME) as shell:
        seen = await shell.run("id -u; pwd; cat /etc/conformance-private || word=kept")
        expect.equal(seen.text, f"{UID}\n{HOME}\n", "the uid and the directory of a line")
        expect.equal((await shell.run("id -G; echo $word $USER")).text, f"{GID} 4713\nkept {NAME}\n", "the next line")


@check(
    "users.session-stops",
    "a line of a user's session can be interrupted, and a timeout ends what it started",
    needs=(*NEEDS, Capability.SESSIONS, Capability.KILL_TREE),
)
async def session_stops(context: Context) -> None:
    box = await _prepared(context)
    async with await box.session(user=NAME) as shell:
        for _ in range(context.times(3)):
            line = context.begin(shell.run("sleep 30"))
            await asyncio.sleep(0.2)
            await shell.interrupt()
            expect.equal((await asyncio.wait_for(line, 10)).exit_code, 130, "the exit code of an interrupted line")
        stuck = await shell.run("(trap '' INT; sleep 4242)", timeout_s=0.5)
        expect.true(stuck.timed_out, "a line past its timeout did not time out")
        expect.equal((await shell.run("echo here")).text, "here\n", "the line after a timeout")
    await expect.soon(lambda: _is_gone(box, "sleep 4242"), "what a line started is still there")


@check("users.terminal", "a terminal and its command belong to the user", needs=(*NEEDS, Capability.TERMINALS))
async def terminal(context: Context) -> None:
    box = await _prepared(context)
    async with await box.terminal("id -u; echo by name > $(tty); echo $HOME", user=NAME) as screen:
        shown = b""
        while chunk := await screen.read():
            shown += chunk
        expect.exited(await screen.wait())
    expect.equal(shown, f"{UID}\r\nby name\r\n{HOME}\r\n".encode(), "what the terminal shows")


@check(
    "users.timeout", "a timeout ends the whole process tree of a user's action", needs=(*NEEDS, Capability.KILL_TREE)
)
async def timeout(context: Context) -> None:
    box = await _prepared(context)
    line = "(setsid sleep 4343 & setsid sh -c 'sleep 4343; true' &); sleep 4343"
    seen = await _as(box, line, timeout_s=1.0 * context.patience)
    expect.true(seen.timed_out, "the action did not time out")
    await expect.soon(lambda: _is_gone(box, "sleep 4343"), "what the user's action started is still there")


@check("users.signals", "a user's action can signal neither the guest nor root's processes", needs=NEEDS)
async def signals(context: Context) -> None:
    box = await _prepared(context)
    async with box.stream(Action("echo $$; read word; echo unharmed")) as roots:
        pid = int((await anext(aiter(roots))).data)
        seen = await _as(box, f"kill -9 {pid}; kill -9 $PPID; kill -9 1; kill -9 -1; true")
        # `kill -9 -1` may end the user's own shell, and nothing else.
        expect.true(seen.signal in (None, 9), f"the action ended with signal {seen.signal}")
        await roots.write(b"go\n")
        rest = b"".join([chunk.data async for chunk in roots])
        expect.equal(rest, b"unharmed\n", "what root's process says afterwards")
    expect.exited(await run(box, ["true"]))


async def _is_gone(box: Sandbox, words: str) -> bool:
    line = "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline 2>/dev/null; echo; done"
    return words not in [each.strip() for each in (await run(box, line)).text.splitlines()]
