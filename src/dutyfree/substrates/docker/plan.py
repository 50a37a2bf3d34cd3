"""The documents that we send to an engine. All functions are pure."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from dutyfree.guest import DEFAULT_ENVIRONMENT
from dutyfree.model import Capability, Image, SandboxSpec, Unenforced
from dutyfree.substrates.docker.facts import Facts
from dutyfree.substrates.sources import Source

OWNER_LABEL: Final = "dutyfree.owner"
"""On our containers and volumes: the name of the claim to which they belong."""
SNAPSHOT_LABEL: Final = "dutyfree.snapshot"
"""The same, on the images of snapshots. There are two labels because containers inherit the labels of their images, and
images those of their containers: what a user makes from ours must not have a label by which we would remove it."""
GUEST_DIRECTORY: Final = "/.dutyfree"
GUEST: Final = f"{GUEST_DIRECTORY}/guest"
CAPABILITIES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("NET_BIND_SERVICE", "AUDIT_WRITE", "SETFCAP"),
)
"""The capabilities that root needs for ordinary work in a container. The same as in a cell."""
_SHM_BYTES: Final = 64 * 1024 * 1024
"""The default of engines."""
_DEFAULT_CWD: Final = Image().cwd
_REASONS: Final = {
    Capability.LIMIT_MEMORY: "the engine's kernel has no memory controller for it",
    Capability.LIMIT_PIDS: "the engine's kernel has no pids controller for it",
    Capability.LIMIT_CPU: "the engine's kernel has no CPU quotas for it",
    Capability.LIMIT_DISK: "the engine's storage driver cannot limit a container's disk",
}


def volume(owner: str) -> str:
    """The name of the volume with the guest's program."""
    return f"dutyfree-{owner}"


def porter(image: str, owner: str) -> dict[str, Any]:
    """A container that is never started. It only gives access to the volume, so that files can be copied there."""
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


def _shown(source: Source, target: str) -> dict[str, Any]:
    """A directory or file of the host, without what is mounted below it."""
    options = {"NonRecursive": True, "Propagation": "private"}
    return {"Type": "bind", "Source": source.path, "Target": target, "ReadOnly": True, "BindOptions": options}


def container(
    image: str,
    spec: SandboxSpec,
    facts: Facts,
    *,
    owner: str,
    user: str,
    runtime: str | None,
    pids: bool = True,
    sources: Sequence[Source] = (),
) -> dict[str, Any]:
    """A container whose only process is our guest. When the stream ends, the guest exits and the container is removed.

    `pids`: whether the runtime supports a limit on processes. `sources`: those of the spec's mounts, as found.
    """
    shown = [_shown(source, mount.target) for source, mount in zip(sources, spec.mounts, strict=True)]
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
        "HostConfig": {**_host(spec, facts, runtime, pids), "Mounts": [_mount(owner, read_only=True), *shown]},
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
        # `MemorySwap` is memory and swap together, so the same number means no swap.
        host |= {"Memory": resources.memory_bytes, "MemorySwap": resources.memory_bytes}
        # Files in /dev/shm are memory that an out-of-memory kill does not free: leave half for processes.
        host["ShmSize"] = min(_SHM_BYTES, resources.memory_bytes // 2)
    if resources.pids is not None and pids and Capability.LIMIT_PIDS in facts.limits:
        host["PidsLimit"] = resources.pids
    if resources.cpus is not None and Capability.LIMIT_CPU in facts.limits:
        # An engine refuses a limit above its number of CPUs.
        host["NanoCpus"] = round(min(resources.cpus, facts.cpus or resources.cpus) * 1e9)
    if resources.disk_bytes is not None and Capability.LIMIT_DISK in facts.limits:
        host["StorageOpt"] = {"size": str(resources.disk_bytes)}
    return host


def another_guest(user: str) -> dict[str, Any]:
    """An exec that runs another guest."""
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
    """The changes at a commit that label the image as one of our snapshots."""
    return [f'LABEL {OWNER_LABEL}="" {SNAPSHOT_LABEL}="{owner}"']


def guest_archive(program: bytes) -> bytes:
    """A tar archive with the guest's program, for the volume."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        file = tarfile.TarInfo(GUEST.removeprefix(f"{GUEST_DIRECTORY}/"))
        file.mode, file.size = 0o755, len(program)
        archive.addfile(file, io.BytesIO(program))
    return buffer.getvalue()


def unenforced(
    spec: SandboxSpec, facts: Facts, weak: Mapping[Capability, str] = MappingProxyType({})
) -> tuple[Unenforced, ...]:
    """The requested limits that the engine cannot enforce; `weak`: those that its runtime cannot, with reasons."""
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
    """The capabilities of containers of this engine."""
    always = {
        *(Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.PRIVATE_FILES, Capability.KILL_TREE),
        *(Capability.RESET, Capability.SNAPSHOT, Capability.FORK, Capability.IMAGES, Capability.USERS),
        *(Capability.DENY_NETWORK, Capability.HOST_NETWORK, Capability.PORTS, Capability.EGRESS),
        *(Capability.PAUSE, Capability.WATCH),
    }
    bridge = {Capability.BRIDGE_NETWORK} if facts.bridge else set()
    local = {Capability.HOST_PROCESSES} if facts.local else set()
    mounts = set() if without_mounts(facts) else {Capability.MOUNTS}
    return frozenset(always | facts.limits | bridge | local | mounts)


def without_mounts(facts: Facts) -> str:
    """Why containers of this engine cannot show files of this machine; empty if they can."""
    if not facts.local:
        return "the engine runs on another machine, which does not have the files of this one"
    if os.geteuid() != 0:
        return "the engine mounts as root: a container would show files that this user may not read"
    return ""


def environment(config: Mapping[str, Any], image: Image) -> dict[str, str]:
    """The environment of actions: from the engine's config of the image, overridden by `image.env`."""
    entries = [entry.partition("=") for entry in config.get("Env") or () if isinstance(entry, str)]
    own = {name: value for name, equals, value in entries if name and equals and "\0" not in value}
    return {**DEFAULT_ENVIRONMENT, **own, **image.env}


def directory(config: Mapping[str, Any], image: Image) -> str:
    """The working directory of actions: from the engine's config of the image, unless `image` has its own."""
    own = config.get("WorkingDir")
    if image.cwd != _DEFAULT_CWD:
        return image.cwd
    return own if isinstance(own, str) and own.startswith("/") and "\0" not in own else "/"
