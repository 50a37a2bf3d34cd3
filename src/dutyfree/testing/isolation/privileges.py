"""Privileges: which ones a sandbox's processes have, and that they cannot gain more."""

from __future__ import annotations

from dutyfree.model import Isolation
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Scene, Topic

PRIVILEGES = Topic("privileges")

OTHER_USER = 1000
FORBIDDEN_CAPABILITIES = {
    2: "DAC_READ_SEARCH",
    9: "LINUX_IMMUTABLE",
    12: "NET_ADMIN",
    16: "SYS_MODULE",
    17: "SYS_RAWIO",
    19: "SYS_PTRACE",
    20: "SYS_PACCT",
    21: "SYS_ADMIN",
    22: "SYS_BOOT",
    23: "SYS_NICE",
    24: "SYS_RESOURCE",
    25: "SYS_TIME",
    26: "SYS_TTY_CONFIG",
    30: "AUDIT_CONTROL",
    32: "MAC_OVERRIDE",
    33: "MAC_ADMIN",
    34: "SYSLOG",
    35: "WAKE_ALARM",
    36: "BLOCK_SUSPEND",
    37: "AUDIT_READ",
    38: "PERFMON",
    39: "BPF",
    40: "CHECKPOINT_RESTORE",
}
"""Capability numbers and names. Without MKNOD: a node that cannot be opened is harmless, and `kernel` probes that."""


@PRIVILEGES.probe(
    "no-new-privs",
    "no program can gain privileges by exec (no_new_privs is set)",
    Isolation.CONTAINER,
    shared_kernel=True,
)
async def no_new_privs(scene: Scene) -> None:
    seen = await scene.value_of("status-field", "NoNewPrivs")
    if seen != "1":
        raise Broken(f"NoNewPrivs is {seen}")


@PRIVILEGES.probe("seccomp", "system calls are filtered", Isolation.CONTAINER, shared_kernel=True)
async def seccomp(scene: Scene) -> None:
    seen = await scene.value_of("status-field", "Seccomp")
    if seen != "2":
        raise Broken(f"Seccomp is {seen}, and 2 means filtered")


@PRIVILEGES.probe("capabilities", "no process can have a dangerous capability", Isolation.CONTAINER, shared_kernel=True)
async def capabilities(scene: Scene) -> None:
    for field in ("CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"):
        bits = int(await scene.value_of("status-field", field), 16)
        held = [name for number, name in FORBIDDEN_CAPABILITIES.items() if bits >> number & 1]
        if held:
            raise Broken(f"{field} has {', '.join(held)}")
        scene.note(f"{field} {bits:x}")


@PRIVILEGES.probe("setuid", "a set-user-id root program does not make another user root", Isolation.CONTAINER)
async def setuid(scene: Scene) -> None:
    await _needs_other_users(scene)
    seen = await scene.value_of("run-setuid-copy", f"{scene.home}/copy", str(OTHER_USER))
    if seen != str(OTHER_USER):
        raise Broken(f"user {OTHER_USER} became user {seen}")


@PRIVILEGES.probe("become-user", "root can switch to an ordinary user and write files as that user", Isolation.NONE)
async def become_user(scene: Scene) -> None:
    await _needs_other_users(scene)
    seen = await scene.value_of("become-user", str(OTHER_USER), f"/tmp/{scene.token}")
    await scene.sandbox.files.remove(f"/tmp/{scene.token}")
    if seen != str(OTHER_USER):
        raise Broken(f"a file that user {OTHER_USER} made belongs to {seen}")


@PRIVILEGES.probe("own-files", "modes and owners of the sandbox's own files can be changed", Isolation.NONE)
async def own_files(scene: Scene) -> None:
    await scene.sandbox.files.write(f"{scene.home}/file", b"x")
    other = str(OTHER_USER) if await has_other_users(scene) else "-"
    await scene.must_allow("own-files", f"{scene.home}/file", other)


async def has_other_users(scene: Scene) -> bool:
    """Whether the sandbox's root can switch to the user id `OTHER_USER`."""
    if await scene.value_of("effective-uid") != "0":
        return False
    ranges = (await scene.value_of("read-file", "/proc/self/uid_map")).split()
    pairs = zip(ranges[0::3], ranges[2::3], strict=False)
    return any(int(first) <= OTHER_USER < int(first) + int(length) for first, length in pairs)


async def _needs_other_users(scene: Scene) -> None:
    if not await has_other_users(scene):
        raise NotApplicable("the sandbox has a single user")


PRIVILEGES.denies("realtime", "no process can get real-time priority", Isolation.CONTAINER, "realtime")
PRIVILEGES.denies("priority", "no process can raise its priority", Isolation.CONTAINER, "raise-priority")


@PRIVILEGES.probe("personality", "which execution personalities a process may set", Isolation.CONTAINER, recorded=True)
async def personality(scene: Scene) -> None:
    for name, bits in (("ADDR_NO_RANDOMIZE", 0x0040000), ("READ_IMPLIES_EXEC", 0x0400000), ("PER_LINUX32", 0x8)):
        answer = await scene.ask("personality", hex(bits))
        scene.note(f"{name} {answer.verdict} {answer.text}".strip())
