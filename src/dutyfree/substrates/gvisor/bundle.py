"""gVisor's command lines and config.json, and the mounts of a sandbox. All functions are pure.

A sandbox's directory has::

    root     the overlay: the image's layers, and over them what the sandbox writes
    up       what the sandbox writes, if it is kept in memory
    shown    what the sandbox sees of the host: a directory for each mount, or a file
    config.json, log, pid, state    files of gVisor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS
from dutyfree.model import Network, Resources, SandboxSpec
from dutyfree.substrates.gvisor import release
from dutyfree.substrates.gvisor.keeper_client import Mount
from dutyfree.substrates.memory_disk import inodes_for, memory_disk_bytes
from dutyfree.substrates.sources import Source

GUEST: Final = "/.dutyfree-guest"
"""The path of the guest in a sandbox."""
CAPABILITIES: Final = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE", "CAP_AUDIT_WRITE", "CAP_SETFCAP",
)  # fmt: skip
"""The capabilities of root in a sandbox, over its own files and processes. The same as in a cell."""
_NO_DEVICES: Final = 4
_INERT: Final = 2 | _NO_DEVICES
"""Without set-id programs and devices."""
_READ_ONLY: Final = 1
_REMOUNT: Final = 32
_BIND: Final = 4096


@dataclass(frozen=True, slots=True)
class Engine:
    """A gVisor that works on this host."""

    program: str
    platform: str
    version: str = ""
    """The output of `runsc --version`."""

    @property
    def kills_trees(self) -> bool:
        """Whether all processes of an action can be ended."""
        return release.kills_trees(self.version)

    def flags(self, state: Path, network: Network) -> list[str]:
        """The first words of every `runsc` command for sandboxes with this state directory."""
        # `overlay2=none`: written files must be on the host, where snapshots read them. `dcache=1`: gVisor writes file
        # times to the host only when it drops a file from its cache.
        return [
            self.program, f"--root={state}", f"--platform={self.platform}", f"--log={state.parent}/log",
            "--log-format=json", f"--network={'host' if network is Network.HOST else 'none'}", "--overlay2=none",
            "--ignore-cgroups", "--dcache=1", "--file-access=exclusive", "--file-access-mounts=exclusive",
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A sandbox's directory, and its name for gVisor."""

    directory: Path
    name: str
    writable: Path
    """The directory for what the sandbox writes: `up`, or a directory on disk."""

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def shown(self, number: int) -> Path:
        """Where the source of that mount is."""
        return self.directory / "shown" / str(number)

    @property
    def nothing(self) -> Path:
        """An empty directory."""
        return self.directory / "shown" / "nothing"

    @property
    def upper(self) -> Path:
        return self.writable / "upper"

    @property
    def in_memory(self) -> bool:
        return self.writable == self.directory / "up"


def run_command(engine: Engine, place: Place, network: Network) -> list[str]:
    """The command that makes the sandbox. It ends when the guest has started."""
    pid_file = f"--pid-file={place.directory}/pid"
    return [*engine.flags(place.state, network), "run", "--detach", pid_file, f"--bundle={place.directory}", place.name]


def exec_command(engine: Engine, place: Place, network: Network) -> list[str]:
    """The command that starts another guest in a sandbox."""
    return [*engine.flags(place.state, network), "exec", "--cwd=/", place.name, GUEST, "--stdio", "--leave"]


def control_command(engine: Engine, place: Place, network: Network, verb: str) -> list[str]:
    """The command that pauses or resumes a sandbox (`verb`)."""
    return [*engine.flags(place.state, network), verb, place.name]


def config(
    place: Place,
    spec: SandboxSpec,
    *,
    guest: Path,
    resolv_conf: Path | None,
    own_tmp: bool,
    sources: Sequence[Source] = (),
) -> dict[str, object]:
    """The container's config.json, as the Open Container Initiative specifies it.

    `own_tmp`: the image has a directory /tmp, which is then mounted explicitly. Otherwise gVisor would mount its own
    memory over an empty /tmp, and snapshots would not see the files there. `sources`: those of the spec's mounts.

    The sandbox's ids are mapped to the ids that own the layers' files on disk. These ids own nothing else, so gVisor's
    processes have no rights on the host.
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
        "mounts": [
            *_mounts(spec, guest, resolv_conf),
            *([_bind(place.root / "tmp", "/tmp")] if own_tmp else []),
            *(
                _bind(place.shown(number), mount.target, "ro", "nosuid", "nodev", "private")
                for number, mount in enumerate(spec.mounts[: len(sources)])
            ),
        ],
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


def shown(place: Place, number: int, source: Source) -> list[Mount]:
    """The mounts that show a directory or file of the host at `place.shown(number)`, without what is mounted below it.

    Read-only for the host's kernel, too: gVisor opens a file of its read-only mounts for writing, and truncates it,
    before it refuses (seen in release 20240729). A directory is an overlay, which nothing can be written to from the
    moment on that it is mounted.
    """
    target = str(place.shown(number))
    if source.is_directory:
        lower = source.path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        # An overlay has at least two layers.
        options = f"lowerdir={lower}:{place.nothing},xino=off,redirect_dir=nofollow"
        return [Mount("overlay", target, "overlay", _READ_ONLY | _INERT, options)]
    return [
        Mount(source.path, target, "", _BIND),
        Mount("", target, "", _BIND | _REMOUNT | _READ_ONLY | _INERT),
    ]


def writable_space(place: Place, resources: Resources) -> Mount:
    """The tmpfs for what a sandbox writes."""
    limit_bytes = memory_disk_bytes(resources)
    bounds = f"size={limit_bytes},nr_inodes={inodes_for(limit_bytes)}," if limit_bytes is not None else ""
    return Mount("tmpfs", str(place.writable), "tmpfs", _NO_DEVICES, f"{bounds}mode=755")


def root(place: Place, lowers: Sequence[Path]) -> Mount:
    """The overlay of the layers, topmost first, and the writable space over them."""
    # The same options as for a cell. `volatile`: a sandbox need not survive a crash of the machine.
    # `redirect_dir=nofollow`: an upper without redirects is a layer that every tool can read, and the redirects of a
    # hostile layer are not followed.
    layers = ":".join(map(str, lowers))
    options = f"lowerdir={layers},upperdir={place.upper},workdir={place.writable}/work"
    extra = "xino=off,index=off,redirect_dir=nofollow,volatile"
    return Mount("overlay", str(place.root), "overlay", _NO_DEVICES, f"{options},{extra}")
