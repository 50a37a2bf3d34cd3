"""What it takes to make a cell, as lists of operations. Everything here is pure.

The spawner lives in a small root of its own, made once (`spawner_plan`), in which the host's directories that it needs
keep their paths::

    /host      the host's root                 /mask      the layer that lies over it: masks and own directories
    /devices   a ready-made /dev               /new, /up  empty; in each cell its root and its writable space
    /layers    the image store's layers        /frozen    writable spaces of cells of which there were snapshots
    /skeleton  a layer of what every root must have, so that no image can put a link in its place
    /bases     the host's root under its masks, ready-made, where other layers could not lie over it otherwise

A cell starts as a copy of the spawner's mount namespace, adds what is its own (`cell_plan`), and moves into `/new`.
All that it changes is in `/up/upper`, as one tree, also where its root is made of several overlays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS
from dutyfree.model import Network, Resources, SandboxSpec, Upper
from dutyfree.substrates.cell import cgroups
from dutyfree.substrates.cell.editable import MAX_BYTES
from dutyfree.substrates.cell.hostroot import SYSTEM_TREES, HostRoot, TopLevel, is_open
from dutyfree.substrates.cell.operations import MountFlag, Operation, Plan, Verb, bind, mkdir, mount, op
from dutyfree.substrates.hierarchies import Cgroups

ACCOUNTS = 0x0FFF_0000
"""How many ids behind that range serve as the cells' accounts with the kernel, one each."""
TTY_GROUP = 5
BYTES_PER_INODE = 8192
MASK_BYTES = 2 * MAX_BYTES
LONG_LINK = 256
"""How long a link's text is that tmpfs keeps in a page; one of up to 128 bytes is kept with the inode."""
IMAGE = "/proc/self/fd/63"
"""Where the spawner shows a cell its disk."""
SHIELD = MountFlag.NO_SUID | MountFlag.NO_DEV | MountFlag.NO_EXEC

_ROOMS = ("host", "proc", "mask", "devices", "new", "up", "layers", "frozen", "skeleton", "bases")
SKELETON = {"": 0o755, "/dev": 0o755, "/proc": 0o555, "/sys": 0o555}
HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

NAMESPACES = {"mnt": 0x0002_0000, "uts": 0x0400_0000, "ipc": 0x0800_0000, "pid": 0x2000_0000}
"""Those that a cell is cloned into; network, cgroup and user namespaces come in their turn."""
KEPT_CAPABILITIES = {
    "chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6, "setuid": 7, "setpcap": 8,
    "net_bind_service": 10, "audit_write": 29, "setfcap": 31,
}  # fmt: skip
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
DEVICE_LINKS |= {"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all cells of one host process have in common."""

    owner: str
    host: HostRoot
    cgroups: Cgroups
    rootless: bool
    state_directory: str
    """Of this owner alone, small, gone with it."""
    disk_directory: str
    """Where upper directories on disk are made; of this owner alone."""
    layers_directory: str
    """Of the image store."""
    layers_inside_host: bool = False
    """Whether the image store lies in a file system that is part of the host's root; no overlay can be made of both."""
    disk_inside_host: bool = False
    """The same of the directory for uppers on disk."""

    @property
    def root_id(self) -> int:
        """The id, as the spawner sees it, that a cell's root user stands for."""
        return 0 if self.rootless else SUBORDINATE_IDS


@dataclass(frozen=True, slots=True)
class Lower:
    """A layer under a cell: a directory of the spawner's root."""

    path: str
    inner: frozenset[tuple[str, int]] = frozenset()
    """Those of `inner_roots` that are directories in it, with their modes."""
    mode: int = 0o755
    """Of its root, which is that of the cell's root if it is the topmost."""
    inside_host: bool = False
    """Whether it lies in a file system that is part of the host's root."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a cell's own files lie over, topmost first."""

    lowers: tuple[Lower, ...] = ()
    over_host: bool = True

    def directories(self, inner: str = "") -> list[str]:
        """The layers that have a directory `inner`."""
        return [lower.path + inner for lower in self.lowers if not inner or inner in dict(lower.inner)]

    def mode(self, inner: str, otherwise: int) -> int:
        """That of a directory in the topmost layer that has it, and `otherwise` if none has."""
        modes = [mode for lower in self.lowers for path, mode in lower.inner if path == inner]
        return modes[0] if modes else otherwise


def inner_roots(setting: Setting) -> tuple[str, ...]:
    """Directories of the host's root that have to be overlaid by themselves."""
    if not setting.rootless:
        return setting.host.separate
    hidden = (path for path, _mode in _mounted_masks(setting.host))
    return (*(f"/{entry.name}" for entry in _overlaid(setting.host)), *hidden)


def spawner_plan(setting: Setting) -> Plan:
    """The spawner's own root."""
    root = f"{setting.state_directory}/root"
    own = [setting.state_directory, setting.disk_directory]
    kept = [*setting.cgroups.directories(), *(str(PurePosixPath(path).parent) for path in own)]
    if not setting.rootless:
        kept.append("/dev")  # loop devices
    plan = [mkdir(root), mount("tmpfs", root, "tmpfs", 0, "size=16m,mode=755")]
    plan.append(mount("", root, flags=MountFlag.UNBINDABLE))  # or the copy of `/` below would contain it
    plan += [mkdir(f"{root}/{name}") for name in _ROOMS]
    # Without privilege a mount can only be copied together with all that is mounted below it.
    plan.append(bind("/", f"{root}/host", MountFlag.RECURSIVE if setting.rootless else 0))
    plan.append(bind("/proc", f"{root}/proc", MountFlag.RECURSIVE))
    if not setting.rootless:  # the host's root was copied without what is mounted below it
        plan += [bind(path, f"{root}/host{path}") for path in setting.host.separate]
    for path in kept:
        plan += [*_parents(root, path), mkdir(root + path), bind(path, root + path)]
    plan.append(bind(setting.layers_directory, f"{root}/layers"))
    plan += [mkdir(f"{root}/skeleton{path}", mode, setting.root_id) for path, mode in SKELETON.items()]
    plan.append(op(Verb.ROOT, root))
    plan += _devices(setting)
    plan += _mask_layer(setting)
    plan += _bases(setting)
    plan += cgroups.owner_plan(setting.cgroups, setting.owner)
    # Given back when the spawner ends, so that nothing is left even if this process cannot do it any more.
    return plan + [op(Verb.SCRATCH, path) for path in own]


def _parents(root: str, path: str) -> Plan:
    parents = [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "/"]
    return [mkdir(root + parent) for parent in reversed(parents)]


def _devices(setting: Setting) -> Plan:
    """A /dev that every cell gets the same, read-only; devices can be written to all the same."""
    plan = [mount("tmpfs", "/devices", "tmpfs", 0, "size=64k,mode=755")]
    plan += [mkdir("/devices/pts"), mkdir("/devices/shm", 0o1777)]
    plan += [op(Verb.SYMLINK, target, f"/devices/{name}") for name, target in DEVICE_LINKS.items()]
    for name, (major, minor) in DEVICES.items():
        if setting.rootless:  # an ordinary user cannot make device nodes, but may show those that are there
            plan += [op(Verb.WRITE, f"/devices/{name}", "666", 0, ""), bind(f"/host/dev/{name}", f"/devices/{name}")]
        else:
            plan.append(op(Verb.MKNOD, f"/devices/{name}", "20666", 0, major, minor))
    flags = MountFlag.REMOUNT | MountFlag.BIND | MountFlag.READ_ONLY | MountFlag.NO_SUID | MountFlag.NO_EXEC
    return [*plan, mount("", "/devices", "", flags)]


def _mask_layer(setting: Setting) -> Plan:
    """The layer between the host's files and the cell's own: as a layer, masks cost a cell nothing."""
    host, owner = setting.host, setting.root_id
    plan = [mount("tmpfs", "/mask", "tmpfs", 0, f"size={MASK_BYTES},mode=755")]
    if (
        setting.rootless
    ):  # there, directories are hidden by mounts of each cell: ordinary users may not use the attribute
        links = [entry for entry in host.top_level if entry.link_target]
        plan += [op(Verb.SYMLINK, entry.link_target or "", f"/mask/{entry.name}") for entry in links]
        plan += [mkdir(f"/mask/{entry.name}", entry.mode, owner) for entry in _overlaid(host)]
        plan += [mkdir(f"/mask{path}", mode) for path, mode in _hidden_directories(host) if path.count("/") == 1]
    # What the host keeps closed stays its own, and so just as closed.
    repeated = [(path, mode, owner if is_open(mode) else 0) for path, mode in host.repeated]
    if setting.rootless:
        plan += [mkdir(f"/mask{path}", mode) for path, mode in _repeated_openly(host).items()]
        return [*plan, *(_whiteout(path) for path in _whited_out(host)), *_own_files(setting)]
    plan += [mkdir(f"/mask{path}", mode, whose) for path, mode, whose in repeated]
    for path, mode in _hidden_directories(host):
        plan += [mkdir(f"/mask{path}", mode, owner), op(Verb.XATTR, f"/mask{path}", "trusted.overlay.opaque", "y")]
    given = {path for path, _mode, _text in host.texts}
    plan += [_whiteout(path) for path in host.masked_files if path not in given]
    return plan + _own_files(setting)


def _whiteout(path: str) -> Operation:
    """Overlay's mark for a file that is not there. Other than devices, ordinary users may make it."""
    return op(Verb.MKNOD, f"/mask{path}", "20000", 0, 0, 0)


def _own_files(setting: Setting) -> Plan:
    """Files that belong to the cell's users: copies of the host's, and others in place of the host's."""
    host, root = setting.host, setting.root_id
    plan: Plan = []
    if not setting.rootless:
        plan += [mkdir(f"/mask{path}", mode, root + user) for path, mode, user in host.owned]
    for path, mode, user in host.copies:
        owner = root if setting.rootless else root + user
        plan.append(op(Verb.COPY, f"/host{path}", f"/mask{path}", f"{mode:o}", owner))
    return plan + [op(Verb.WRITE, f"/mask{path}", f"{mode:o}", root, text) for path, mode, text in host.texts]


def _bases(setting: Setting) -> Plan:
    """The kernel refuses layers of which one lies inside the other, as the store does in `/`. An overlay of the host's
    root is a file system of its own, in which nothing lies. (`xino=off`: the cell's own overlay needs the bits.)"""
    if setting.rootless or not (setting.layers_inside_host or setting.disk_inside_host):
        return []  # (the store of an ordinary user is in what cells do not see)
    plan: Plan = [mkdir("/bases/none")]  # an overlay has at least two layers
    for index, path in enumerate(("", *setting.host.separate)):
        lowers = ["/bases/none", *_host_lowers(setting, path)] if path else _host_lowers(setting)
        options = f"lowerdir={':'.join(lowers)},xino=off,redirect_dir=nofollow"
        plan += [mkdir(f"/bases/{index}"), mount("overlay", f"/bases/{index}", "overlay", MountFlag.READ_ONLY, options)]
    return plan


def _host_lowers(setting: Setting, path: str = "") -> list[str]:
    is_masked = not path or any(path == repeated for repeated, _mode in setting.host.repeated)
    return [*([f"/mask{path}"] if is_masked else []), f"/host{path}"]


def _hidden_directories(host: HostRoot) -> list[tuple[str, int]]:
    return [*host.own, *((path, 0o755) for path in host.masked_directories)]


def _overlaid(host: HostRoot) -> list[TopLevel]:
    """The directories of `/` that a rootless cell sees; data that is mounted below one hides the whole of it."""
    hidden = {path for path, _mode in host.own} | set(host.masked_directories)
    seen = [entry for entry in host.top_level if entry.is_open and f"/{entry.name}" not in hidden]
    return [entry for entry in seen if f"/{entry.name}" in SYSTEM_TREES or not _mounted_below(host, entry)]


def _mounted_below(host: HostRoot, entry: TopLevel) -> bool:
    return any(path.startswith(f"/{entry.name}/") for path in host.mounted)


def cell_plan(
    setting: Setting, cell: int, spec: SandboxSpec, base: Base | None = None, template: str | None = None
) -> Plan:
    """One cell. `template` is the empty file system that bounds an upper on disk."""
    return [*individual_plan(setting, cell, spec, template), *common_plan(setting, spec, base or Base())]


def individual_plan(setting: Setting, cell: int, spec: SandboxSpec, template: str | None) -> Plan:
    """What no two cells have in common: the number, the cgroups, a place on disk."""
    account = 0 if setting.rootless else SUBORDINATE_IDS + SUBORDINATE_COUNT + cell % ACCOUNTS
    user = op(Verb.USER, setting.root_id, 1 if setting.rootless else SUBORDINATE_COUNT, account)
    plan = [op(Verb.CELL, cell), user, *cgroups.cell_plan(setting.cgroups, setting.owner, cell, spec.resources)]
    path = f"{setting.disk_directory}/{cell}"
    if spec.upper is Upper.TMPFS:
        return plan
    if template is None:
        return [*plan, op(Verb.SCRATCH, path), bind(path, "/up")]
    options = "nobarrier,noinit_itable"
    return [*plan, op(Verb.IMAGE, template, path), mount(IMAGE, "/up", "ext4", MountFlag.NO_DEV, options)]


def common_plan(setting: Setting, spec: SandboxSpec, base: Base) -> Plan:
    """What every cell of that base, network, upper, disk and memory size, and hostname does, planned once."""
    isolated = spec.network is Network.NONE
    plan = [op(Verb.UNSHARE, sum(NAMESPACES.values()))]
    if setting.cgroups.homes:
        plan.append(op(Verb.CGROUP_NS))
    plan.append(op(Verb.HOSTNAME, spec.hostname))
    if isolated:
        plan.append(op(Verb.NETWORK))
    plan += _writable_space(setting, spec, base)
    plan += _root(setting, base)
    plan += _kernel_file_systems(setting)
    plan += _shared_memory(setting, spec)
    plan.append(op(Verb.ROOT, "/new"))
    # Only now: an image may have links in place of these files' directories, and they lead nowhere but into itself.
    resolv_conf = setting.host.resolv_conf if base.over_host else setting.host.name_servers
    if not isolated and resolv_conf:
        plan.append(op(Verb.ENSURE, "/etc/resolv.conf", "644", setting.root_id, resolv_conf, 1))
    if not base.over_host:
        plan.append(op(Verb.ENSURE, "/etc/hosts", "644", setting.root_id, HOSTS, 0))
    plan.append(op(Verb.CAPS, sum(1 << number for number in KEPT_CAPABILITIES.values())))
    plan.append(op(Verb.EXEC, "dutyfree-guest", "--fd", 3))
    return plan


def _writable_space(setting: Setting, spec: SandboxSpec, base: Base) -> Plan:
    """`/up`: memory of a limited size, unless it is on disk and mounted already."""
    limit, owner = tmpfs_bytes(spec.resources), setting.root_id
    plan: Plan = []
    if spec.upper is Upper.TMPFS:
        bounds = f"size={limit},nr_inodes={inodes_for(limit)}," if limit is not None else ""
        plan = [mount("tmpfs", "/up", "tmpfs", MountFlag.NO_DEV, f"{bounds}mode=755")]
        # A file system of which nothing is used looks broken to programs. The text of a long link takes a page.
        plan.append(op(Verb.SYMLINK, "-" * LONG_LINK, "/up/used"))
    mode = base.lowers[0].mode if base.lowers else 0o755
    return [*plan, mkdir("/up/upper", mode, owner), op(Verb.KEEP, "/up")]


def _shared_memory(setting: Setting, spec: SandboxSpec) -> Plan:
    """`/dev/shm`: always memory, and part of the writable space where that is memory, too."""
    if spec.upper is Upper.TMPFS:
        return [mkdir("/up/shm", 0o1777, setting.root_id), bind("/up/shm", "/new/dev/shm")]
    limit = tmpfs_bytes(spec.resources)
    bounds = f"size={limit}," if limit is not None else ""
    return [mount("tmpfs", "/new/dev/shm", "tmpfs", SHIELD & ~MountFlag.NO_EXEC, f"{bounds}mode=1777")]


def tmpfs_bytes(resources: Resources) -> int | None:
    """How large an upper in memory may get.

    What is in it counts as the cell's memory, and no killing frees it: half of the limit is left for processes.
    """
    bounds = [resources.disk_bytes, resources.memory_bytes and resources.memory_bytes // 2]
    return min((bound for bound in bounds if bound is not None), default=None)


def inodes_for(limit_bytes: int) -> int:
    """How many files a writable space of that size may hold."""
    return max(1024, limit_bytes // BYTES_PER_INODE)


def _root(setting: Setting, base: Base) -> Plan:
    if not base.over_host:
        lowers = ["/skeleton", *base.directories()]
        return [mkdir("/up/work"), _overlay(setting, "/new", lowers, "/up/upper", "/up/work")]
    return _rootless_root(setting, base) if setting.rootless else _overlay_root(setting, base)


def _overlay_root(setting: Setting, base: Base) -> Plan:
    """The host's root in one piece, and over it each part of the installation that is a file system of its own."""
    skeleton = ["/skeleton"] if base.lowers else []
    ready = any(lower.inside_host for lower in base.lowers)
    uppers = [f"/up/upper{path}" for path in setting.host.separate]
    plan = [mkdir(parent, 0o755, setting.root_id) for upper in uppers for parent in _down_to(upper)]
    plan += [mkdir(f"/up/upper{path}", base.mode(path, 0o755), setting.root_id) for path in setting.host.separate]
    for index, path in enumerate(("", *setting.host.separate)):
        work = f"/up/work-{index}" if path else "/up/work"
        host = [f"/bases/{index}"] if ready else _host_lowers(setting, path)
        lowers = [*(skeleton if not path else []), *base.directories(path), *host]
        plan += [mkdir(work), _overlay(setting, f"/new{path}", lowers, f"/up/upper{path}", work)]
    return plan


def _down_to(upper: str) -> list[str]:
    """The directory and its parents below `/up/upper`, the topmost first."""
    parents = [str(parent) for parent in PurePosixPath(upper).parents if len(parent.parts) > 3]
    return [*reversed(parents), upper]


def _overlay(setting: Setting, target: str, lowers: list[str], upper: str, work: str) -> Operation:
    # `volatile`: nothing of a cell has to survive a crash of the machine, so nothing waits for a disk. Without
    # redirects, an upper is a layer that every tool understands, and a hostile layer cannot lead anywhere. With
    # `xino`, all files have one device number, and stat and readdir name the same inode (docs/explanation/cells.md);
    # `xino=auto` would leave it off, since the kernel does not know how large a tmpfs's inode numbers may get.
    extra = "userxattr" if setting.rootless else "index=off,redirect_dir=nofollow,volatile"
    options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},xino=on,{extra}"
    return mount("overlay", target, "overlay", MountFlag.NO_DEV, options)


def _rootless_root(setting: Setting, base: Base) -> Plan:
    """Without privilege the host's `/` cannot be overlaid in one piece, because of what is mounted below it."""
    host = setting.host
    skeleton = ["/skeleton"] if base.lowers else []
    plan = [mkdir("/up/work"), mkdir("/up/works")]
    # All of their writable layers are inside the root's own, and have to be there before it is mounted.
    for entry in _overlaid(host):
        plan.append(mkdir(f"/up/upper/{entry.name}", base.mode(f"/{entry.name}", entry.mode)))
    for path, mode in _mounted_masks(host):
        plan += [mkdir(parent) for parent in _down_to(f"/up/upper{path}")[1:-1]]
        plan.append(mkdir(f"/up/upper{path}", base.mode(path, mode)))
    plan.append(_overlay(setting, "/new", [*skeleton, *base.directories(), "/mask"], "/up/upper", "/up/work"))
    for entry in _overlaid(host):
        path = f"/{entry.name}"
        if _mounted_below(host, entry):  # cannot be overlaid
            plan += [bind(f"/host{path}", f"/new{path}", MountFlag.RECURSIVE), op(Verb.READ_ONLY, f"/new{path}")]
            continue
        plan += _inner_overlay(setting, path, [*base.directories(path), f"/mask{path}", f"/host{path}"])
    for path, _mode in _mounted_masks(host):
        lowers = base.directories(path)
        plan += _inner_overlay(setting, path, lowers) if lowers else [bind(f"/up/upper{path}", f"/new{path}")]
    seen = {path for path in host.masked_files if _is_seen(host, path)} - set(_whited_out(host))
    return plan + [bind("/devices/null", f"/new{path}") for path in sorted(seen)]


def _inner_overlay(setting: Setting, path: str, lowers: list[str]) -> Plan:
    work = f"/up/works/{path[1:].replace('/', '-')}"
    return [mkdir(work), _overlay(setting, f"/new{path}", lowers, f"/up/upper{path}", work)]


def _mounted_masks(host: HostRoot) -> list[tuple[str, int]]:
    """The hidden directories of a rootless cell that lie inside of others; what the cell writes there is its own."""
    hidden = _hidden_directories(host)
    return [(path, mode) for path, mode in hidden if path.count("/") > 1 and _is_seen(host, path)]


def _is_seen(host: HostRoot, path: str) -> bool:
    return any(path.startswith(f"/{entry.name}/") for entry in _overlaid(host))


def _repeated_openly(host: HostRoot) -> dict[str, int]:
    """The directories of a rootless cell's mask layer: an ordinary user could not look into others."""
    found: dict[str, int] = {}
    for path, mode in host.repeated:
        parent = path.rpartition("/")[0]
        if is_open(mode) and (parent == "" or parent in found):
            found[path] = mode
    return found


def _whited_out(host: HostRoot) -> list[str]:
    """The masked files that a rootless cell's mask layer hides: in a directory of it, in a tree that is overlaid."""
    overlaid = {entry.name for entry in _overlaid(host) if not _mounted_below(host, entry)}
    directories = _repeated_openly(host)
    return [
        path for path in host.masked_files if path.split("/")[1] in overlaid and path.rpartition("/")[0] in directories
    ]


def _kernel_file_systems(setting: Setting) -> Plan:
    group = "" if setting.rootless else f",gid={SUBORDINATE_IDS + TTY_GROUP}"
    return [
        mount("proc", "/new/proc", "proc", SHIELD),
        bind("/devices", "/new/dev", MountFlag.RECURSIVE),
        mount("devpts", "/new/dev/pts", "devpts", MountFlag.NO_SUID | MountFlag.NO_EXEC,
              f"newinstance,ptmxmode=0666,mode=0620{group}"),
    ]  # fmt: skip
