"""The documents that an engine is given: pure, and tested as such."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from dutyfree.guest import DEFAULT_ENVIRONMENT
from dutyfree.model import Capability, Image, SandboxSpec, Unenforced
from dutyfree.substrates.docker.facts import Facts

OWNER_LABEL: Final = "dutyfree.owner"
"""On our containers and volumes: the name of the claim to which they belong."""
SNAPSHOT_LABEL: Final = "dutyfree.snapshot"
"""The same on the images of snapshots. Two labels, for containers inherit those of images, and images those of
containers: what others make of ours must not bear a mark by which it would be removed."""
GUEST_DIRECTORY: Final = "/.dutyfree"
GUEST: Final = f"{GUEST_DIRECTORY}/guest"
CAPABILITIES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("NET_BIND_SERVICE", "AUDIT_WRITE", "SETFCAP"),
)
"""What ordinary work of root takes inside a container: those of a cell."""
_SHM_BYTES: Final = 64 * 1024 * 1024
"""An engine's own default."""
_DEFAULT_CWD: Final = Image().cwd
_REASONS: Final = {
    Capability.LIMIT_MEMORY: "the engine's kernel has no memory controller for it",
    Capability.LIMIT_PIDS: "the engine's kernel has no pids controller for it",
    Capability.LIMIT_CPU: "the engine's kernel has no CPU quotas for it",
    Capability.LIMIT_DISK: "the engine's storage driver cannot bound what a container writes",
}


def volume(owner: str) -> str:
    """The name of the volume that has the guest's program in it."""
    return f"dutyfree-{owner}"


def porter(image: str, owner: str) -> dict[str, Any]:
    """A container that is never started: what is put into it goes into the volume."""
    host = {"NetworkMode": "none", "LogConfig": {"Type": "none"}, "Mounts": [_mount(owner, read_only=False)]}
    return {
        "Image": image,
        "Entrypoint": [GUEST],
        "Labels": {OWNER_LABEL: owner, SNAPSHOT_LABEL: ""},
        "HostConfig": host,
    }


def _mount(owner: str, *, read_only: bool) -> dict[str, Any]:
    options = {"NoCopy": True, "Labels": {OWNER_LABEL: owner}}
    return {
        "Type": "volume",
        "Source": volume(owner),
        "Target": GUEST_DIRECTORY,
        "ReadOnly": read_only,
        "VolumeOptions": options,
    }


def container(
    image: str, spec: SandboxSpec, facts: Facts, *, owner: str, user: str, runtime: str | None, pids: bool = True
) -> dict[str, Any]:
    """A container whose only process is our guest. It ends with the stream, and is removed when it ends.

    `pids`: whether the runtime can bear a limit on processes.
    """
    return {
        "Image": image,
        "Entrypoint": [GUEST],
        "Cmd": ["--stdio"],
        "User": user,
        "Hostname": spec.hostname,
        "Labels": {OWNER_LABEL: owner, SNAPSHOT_LABEL: ""},
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {**_host(spec, facts, runtime, pids), "Mounts": [_mount(owner, read_only=True)]},
    }


def _host(spec: SandboxSpec, facts: Facts, runtime: str | None, pids: bool) -> dict[str, Any]:
    resources = spec.resources
    host: dict[str, Any] = {
        "AutoRemove": True,
        "Init": False,
        "LogConfig": {"Type": "none"},
        "NetworkMode": spec.network.value,
        "IpcMode": "private",
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
    }
    if facts.api >= (1, 41):
        host["CgroupnsMode"] = "private"
    if runtime is not None:
        host["Runtime"] = runtime
    if resources.memory_bytes is not None and Capability.LIMIT_MEMORY in facts.limits:
        # The same number for memory and swap together: none of the latter.
        host |= {"Memory": resources.memory_bytes, "MemorySwap": resources.memory_bytes}
        # Files in /dev/shm are memory that no kill gives back: they must leave some to run in.
        host["ShmSize"] = min(_SHM_BYTES, resources.memory_bytes // 2)
    if resources.pids is not None and pids and Capability.LIMIT_PIDS in facts.limits:
        host["PidsLimit"] = resources.pids
    if resources.cpus is not None and Capability.LIMIT_CPU in facts.limits:
        # An engine refuses to promise more than there are.
        host["NanoCpus"] = round(min(resources.cpus, facts.cpus or resources.cpus) * 1e9)
    if resources.disk_bytes is not None and Capability.LIMIT_DISK in facts.limits:
        host["StorageOpt"] = {"size": str(resources.disk_bytes)}
    return host


def another_guest(user: str) -> dict[str, Any]:
    """An exec that runs one more guest."""
    return {
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "User": user,
        "WorkingDir": "/",
        "Cmd": [GUEST, "--stdio", "--leave"],
    }


def snapshot_changes(owner: str) -> list[str]:
    """What makes the image of a container one of our snapshots."""
    return [f'LABEL {OWNER_LABEL}="" {SNAPSHOT_LABEL}="{owner}"']


def guest_archive(program: bytes) -> bytes:
    """A tar with the guest's program, to be unpacked into the volume."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        file = tarfile.TarInfo(GUEST.removeprefix(f"{GUEST_DIRECTORY}/"))
        file.mode, file.size = 0o755, len(program)
        archive.addfile(file, io.BytesIO(program))
    return buffer.getvalue()


def unenforced(
    spec: SandboxSpec, facts: Facts, weak: Mapping[Capability, str] = MappingProxyType({})
) -> tuple[Unenforced, ...]:
    """The bounds that were asked for and that the engine does not hold; `weak`: those that its runtime does not."""
    resources = spec.resources
    asked = {
        Capability.LIMIT_MEMORY: resources.memory_bytes,
        Capability.LIMIT_PIDS: resources.pids,
        Capability.LIMIT_CPU: resources.cpus,
        Capability.LIMIT_DISK: resources.disk_bytes,
    }
    reasons = {what: reason for what, reason in _REASONS.items() if what not in facts.limits} | dict(weak)
    return tuple(
        Unenforced(what, reasons[what]) for what, value in asked.items() if value is not None and what in reasons
    )


def capabilities(facts: Facts) -> frozenset[Capability]:
    """What containers of this engine can do."""
    always = {
        *(Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.PRIVATE_FILES, Capability.KILL_TREE),
        *(Capability.RESET, Capability.SNAPSHOT, Capability.FORK, Capability.IMAGES),
        *(Capability.DENY_NETWORK, Capability.HOST_NETWORK),
    }
    bridge = {Capability.BRIDGE_NETWORK} if facts.bridge else set()
    local = {Capability.HOST_PROCESSES} if facts.local else set()
    return frozenset(always | facts.limits | bridge | local)


def environment(config: Mapping[str, Any], image: Image) -> dict[str, str]:
    """What the image gives to actions: as the engine's config of it says, and over that what `image` says."""
    entries = [entry.partition("=") for entry in config.get("Env") or () if isinstance(entry, str)]
    own = {name: value for name, equals, value in entries if name and equals and "\0" not in value}
    return {**DEFAULT_ENVIRONMENT, **own, **image.env}


def directory(config: Mapping[str, Any], image: Image) -> str:
    """Where actions run unless they say otherwise: the image's own place, unless `image` names another."""
    own = config.get("WorkingDir")
    if image.cwd != _DEFAULT_CWD:
        return image.cwd
    return own if isinstance(own, str) and own.startswith("/") and "\0" not in own else "/"
