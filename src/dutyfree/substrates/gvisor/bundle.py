"""What gVisor is told, and what is mounted for it. Everything here is pure.

Below a sandbox's own directory::

    root     the overlay of the image's layers, what it writes above them
    up       where it writes, if that is in memory
    config.json, log, pid, state    gVisor's own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS
from dutyfree.model import Network, Resources, SandboxSpec
from dutyfree.substrates.gvisor import release
from dutyfree.substrates.gvisor.keeping import Mount

GUEST: Final = "/.dutyfree-guest"
"""Where a sandbox has its guest."""
CAPABILITIES: Final = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE", "CAP_AUDIT_WRITE", "CAP_SETFCAP",
)  # fmt: skip
"""Those of root in a sandbox, over its own files and processes. The same as a cell's."""
BYTES_PER_INODE: Final = 8192
_NO_DEVICES: Final = 4


@dataclass(frozen=True, slots=True)
class Engine:
    """A gVisor that works here."""

    program: str
    platform: str
    version: str = ""
    """What it says of itself."""

    @property
    def kills_trees(self) -> bool:
        """Whether it ends all that an action has started."""
        return release.kills_trees(self.version)

    def flags(self, state: Path, network: Network) -> list[str]:
        """The beginning of every command about sandboxes whose state is in `state`."""
        # What is written must be on the host, where snapshots find it; `dcache`: with the times of files, which gVisor
        # otherwise keeps to itself until it forgets the file.
        return [
            self.program, f"--root={state}", f"--platform={self.platform}", f"--log={state.parent}/log",
            "--log-format=json", f"--network={'host' if network is Network.HOST else 'none'}", "--overlay2=none",
            "--ignore-cgroups", "--dcache=1", "--file-access=exclusive", "--file-access-mounts=exclusive",
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A sandbox's own directory, and its name for gVisor."""

    directory: Path
    name: str
    writable: Path
    """Where it writes: `up`, or a directory on disk."""

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def upper(self) -> Path:
        return self.writable / "upper"

    @property
    def in_memory(self) -> bool:
        return self.writable == self.directory / "up"


def run_command(engine: Engine, place: Place, network: Network) -> list[str]:
    """Make the sandbox, and return when its guest has been started."""
    pid_file = f"--pid-file={place.directory}/pid"
    return [*engine.flags(place.state, network), "run", "--detach", pid_file, f"--bundle={place.directory}", place.name]


def exec_command(engine: Engine, place: Place, network: Network) -> list[str]:
    """Another guest in a sandbox."""
    return [*engine.flags(place.state, network), "exec", "--cwd=/", place.name, GUEST, "--stdio", "--leave"]


def control_command(engine: Engine, place: Place, network: Network, verb: str) -> list[str]:
    """`pause` and `resume`."""
    return [*engine.flags(place.state, network), verb, place.name]


def config(
    place: Place, spec: SandboxSpec, *, guest: Path, resolv_conf: Path | None, own_tmp: bool
) -> dict[str, object]:
    """The description of the container, as the Open Container Initiative has it.

    `own_tmp`: its root has a directory /tmp. Without a word about it, gVisor mounts memory of its own over an empty
    one, which no snapshot sees.

    Ids in the sandbox stand for those that own the layers' files on disk: a range that owns nothing else, so that
    gVisor's own processes are nobody on the host.
    """
    ids = [{"containerID": 0, "hostID": SUBORDINATE_IDS, "size": SUBORDINATE_COUNT}]
    capabilities = {each: list(CAPABILITIES) for each in ("bounding", "effective", "permitted")}
    namespaces = ["pid", "mount", "ipc", "uts", "user", *(["network"] if spec.network is Network.NONE else [])]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [GUEST, "--stdio"],
            "env": [],
            "cwd": "/",
            "capabilities": capabilities,
            "noNewPrivileges": True,
        },
        "root": {"path": str(place.root)},
        "hostname": spec.hostname,
        "mounts": [*_mounts(spec, guest, resolv_conf), *([_bind(place.root / "tmp", "/tmp")] if own_tmp else [])],
        "linux": {
            "namespaces": [{"type": each} for each in namespaces],
            "uidMappings": ids,
            "gidMappings": ids,
        },
    }


def _mounts(spec: SandboxSpec, guest: Path, resolv_conf: Path | None) -> list[dict[str, object]]:
    size_bytes = memory_disk_bytes(spec.resources)
    limit = [f"size={size_bytes}"] if size_bytes is not None else []
    found: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "nodev", "noexec", "ro"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777", *limit]},
        _bind(guest, GUEST, "ro"),
    ]
    if resolv_conf is not None and spec.network is Network.HOST:
        found.append(_bind(resolv_conf, "/etc/resolv.conf", "ro"))
    return found


def _bind(source: Path, destination: str, *options: str) -> dict[str, object]:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["bind", *options]}


def writable_space(place: Place, resources: Resources) -> Mount:
    """What a sandbox writes, in memory."""
    limit_bytes = memory_disk_bytes(resources)
    bounds = f"size={limit_bytes},nr_inodes={inodes_for(limit_bytes)}," if limit_bytes is not None else ""
    return Mount("tmpfs", str(place.writable), "tmpfs", _NO_DEVICES, f"{bounds}mode=755")


def root(place: Place, lowers: Sequence[Path]) -> Mount:
    """The layers, topmost first, with the writable space over them."""
    # As for a cell: nothing of a sandbox has to survive a crash of the machine, an upper without redirects is a layer
    # that every tool understands, and a hostile layer cannot lead anywhere.
    layers = ":".join(map(str, lowers))
    options = f"lowerdir={layers},upperdir={place.upper},workdir={place.writable}/work"
    extra = "xino=off,index=off,redirect_dir=nofollow,volatile"
    return Mount("overlay", str(place.root), "overlay", _NO_DEVICES, f"{options},{extra}")


def memory_disk_bytes(resources: Resources) -> int | None:
    """How large a disk in memory may get: what is in it is memory, too, of which half is left for processes."""
    bounds = [resources.disk_bytes, resources.memory_bytes and resources.memory_bytes // 2]
    return min((bound for bound in bounds if bound is not None), default=None)


def inodes_for(limit_bytes: int) -> int:
    """How many files a disk of that size may hold."""
    return max(1024, limit_bytes // BYTES_PER_INODE)
