"""Accounts: what a user of the sandbox cannot do, and what hostile passwd and group files cannot do to the guest."""

from __future__ import annotations

import time
from contextlib import suppress

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.model import Action, Capability, Isolation
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

ACCOUNTS = Topic("accounts")
OTHER_USER = 1000
NEEDS = [Capability.USERS]
WITHIN_S = 10.0
ATTACK_MS = 1500
MADE_ODD = {
    "a FIFO": "mkfifo {path}",
    "a link to /dev/zero": "ln -s /dev/zero {path}",
    "a link to a terminal": "ln -s /dev/tty {path}",
    "a link to itself": "ln -s {path} {path}",
    "a directory": "mkdir {path}",
    "a file of 4 GiB": "truncate -s 4G {path}",
}
ODD_ENTRIES = (
    "odd:x:4294967295:4294967295::/:/bin/sh", "odd:x:-1:-1::/:/bin/sh", "odd:x:::/:/bin/sh",
    "odd:x:0x0:0::/:/bin/sh", "odd:x:18446744073709551616:0::/:/bin/sh", "odd:x: 0:0::/:/bin/sh",
    "odd:x:00000000000:0::/:/bin/sh", "odd:x:0", "odd:x:0:0::/:/bin/sh:more", "+odd:x:0:0::/:/bin/sh",
    "odd\\0:x:0:0::/:/bin/sh", ":x:0:0::/:/bin/sh",
)  # fmt: skip
"""No entry of the user `odd` that can be used. Each would be root if a parser were careless."""


@ACCOUNTS.probe(
    "odd-files", "a passwd or group file that is no file neither stops nor harms the guest", Isolation.NONE, needs=NEEDS
)
async def odd_files(scene: Scene) -> None:
    for path in ("/etc/passwd", "/etc/group"):
        moved = await scene.run(f"mv {path} {path}.kept")
        if not moved.ok:
            raise NotApplicable(f"{path} cannot be moved: {moved.stderr[:200]!r}")
        for what, line in MADE_ODD.items():
            made = await scene.run(f"rm -rf {path}; {line.format(path=path)}")
            if not made.ok:
                scene.note(f"{what} could not be made: {made.stderr[:100]!r}")
                continue
            began_s = time.monotonic()
            try:
                seen = await scene.sandbox.run(Action(["id", "-u"], user=OTHER_USER, timeout_s=WITHIN_S))
            except InvalidRequest:
                pass
            else:
                raise Broken(f"an action ran although {path} is {what}: {seen.stdout[:100]!r}")
            if time.monotonic() - began_s > WITHIN_S:
                raise Broken(f"the guest was busy for {time.monotonic() - began_s:.1f} s with {what} as {path}")
            await scene.must_answer()
        await scene.run(f"rm -rf {path}; mv {path}.kept {path}")


@ACCOUNTS.probe(
    "odd-entries", "an entry of passwd with odd ids or fields makes no user root", Isolation.NONE, needs=NEEDS
)
async def odd_entries(scene: Scene) -> None:
    for entry in ODD_ENTRIES:
        await scene.run(f"printf '{entry}\\n' > /etc/passwd")
        try:
            seen = await scene.sandbox.run(Action("id -u", user="odd"))
        except InvalidRequest:
            continue
        raise Broken(f"the entry {entry!r} gave uid {seen.stdout[:100]!r}")
    await scene.must_answer()


@ACCOUNTS.probe("regain-root", "a user cannot become root again", Isolation.CONTAINER, needs=NEEDS)
async def regain_root(scene: Scene) -> None:
    await scene.run(f"cp {scene.home}/probe /tmp/{scene.token} && chmod 4755 /tmp/{scene.token}")
    seen = await scene.sandbox.run(Action([f"/tmp/{scene.token}", "effective-uid"], user=OTHER_USER))
    if seen.text != f"value {OTHER_USER}\n":
        raise Broken(f"a set-user-id program of root, run by a user, answers {seen.text[:200]!r}")
    answer = await scene.ask("become-user", "0", f"/tmp/{scene.token}-made", user=OTHER_USER)
    if answer.verdict is not Verdict.DENIED:
        raise Broken(str(answer))


@ACCOUNTS.probe("secrets", "a user cannot read root's private files in /dev/shm", Isolation.NONE, needs=NEEDS)
async def secrets(scene: Scene) -> None:
    await scene.sandbox.files.write(f"/dev/shm/{scene.token}", b"secret", mode=0o600)
    seen = await scene.sandbox.run(Action(["cat", f"/dev/shm/{scene.token}"], user=OTHER_USER))
    if seen.exit_code == 0 or b"secret" in seen.stdout:
        raise Broken(f"a user read {seen.stdout[:200]!r}")


@ACCOUNTS.probe("environment", "a user cannot read the environment of root's commands", Isolation.NONE, needs=NEEDS)
async def environment(scene: Scene) -> None:
    async with scene.sandbox.stream(Action("echo $$; read word", env={"SECRET": scene.token})) as roots:
        pid = int((await anext(aiter(roots))).data)
        seen = await scene.sandbox.run(Action(f"cat /proc/{pid}/environ", user=OTHER_USER))
        mine = await scene.run(f"cat /proc/{pid}/environ")
    if scene.token not in mine.text:
        raise NotApplicable("root cannot read it either")
    if scene.token in seen.text:
        raise Broken(f"a user read {seen.stdout[:200]!r}")


@ACCOUNTS.probe(
    "descriptors", "a user's command has only its three standard descriptors, and none of the guest's",
    Isolation.NONE, needs=NEEDS,
)  # fmt: skip
async def descriptors(scene: Scene) -> None:
    answer = await scene.ask("open-descriptors", user=OTHER_USER)
    if answer.text != "0 1 2":
        raise Broken(f"a user's command has the descriptors {answer.text}")


def _survives(name: str, promise: str, signal: str) -> None:
    @ACCOUNTS.probe(name, promise, Isolation.NONE, needs=NEEDS)
    async def check(scene: Scene) -> None:
        line = f"exec {scene.home}/probe signal-all-for {signal} {ATTACK_MS}"
        began_s = time.monotonic()
        async with scene.sandbox.stream(Action(line, user=OTHER_USER)):
            while time.monotonic() - began_s < ATTACK_MS / 1000:
                with suppress(CapacityError):  # its own actions may suffer
                    await scene.sandbox.run(Action(["true"], user=OTHER_USER, timeout_s=1))
                await scene.must_answer()
        await scene.must_answer()


_survives("kill-all", "a user that kills all that it may harms its own processes alone", "9")
_survives("stop-all", "a user that stops all that it may harms its own processes alone", "19")


def _denies_on_guest(name: str, promise: str, question: str) -> None:
    @ACCOUNTS.probe(name, promise, Isolation.CONTAINER, needs=NEEDS)
    async def check(scene: Scene) -> None:
        answer = await scene.ask(question, "1", user=OTHER_USER)
        if answer.verdict is not Verdict.DENIED:
            raise Broken(str(answer))
        scene.note(str(answer))


_denies_on_guest("guest-descriptors", "a user cannot list the guest's descriptors", "look-at-descriptors")
_denies_on_guest("guest-stream", "a user cannot take the guest's descriptors", "steal-descriptor")
_denies_on_guest("guest-trace", "a user cannot trace the guest", "trace")
_denies_on_guest("guest-memory", "a user cannot read the guest's memory", "read-memory")
_denies_on_guest("guest-open-memory", "a user cannot open the guest's /proc/PID/mem", "open-memory")
