"""The spawner's own root, made once, in which the host's directories that it needs keep their paths. Pure.

::

    /host      the host's root                 /mask      the layer that lies over it: masks and own directories
    /devices   what a /dev is made of          /new, /up  empty; in each cell its root and its writable space
    /layers    the image store's layers        /frozen    writable spaces of cells of which there were snapshots
    /skeleton  a layer of what every root must have, so that no image can put a link in its place
    /bases     the host's root, ready-made, where other layers could not lie over it otherwise
    /empty     a directory with nothing in it  /kernel    what serves as /proc where a cell can have none of its own
    /terminals empty; in each cell its devpts, on its way to /dev/pts
    /shown     empty; in each cell, each by its number, the directories of the host that its caller shows it
    /parts     of the host's root, each by its number, what is mounted by itself in each cell

It is made in steps, since what can be mounted is found out by trying: `root_plan`, `part_plan` for each part of the
host, `move_plan`, `trial_plan` for each part that is to be overlaid, and `last_plan` with what was found.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from dutyfree.images.ownership import SUBORDINATE_COUNT
from dutyfree.model.mount import MAX_MOUNTS
from dutyfree.substrates.cell import cgroups
from dutyfree.substrates.cell.editable import MAX_BYTES
from dutyfree.substrates.cell.ids import SHARED, IdRange
from dutyfree.substrates.cell.operations import MountFlag, Plan, Verb, bind, mkdir, mount, op
from dutyfree.substrates.cell.parts import Part, Showing, is_open
from dutyfree.substrates.cell.setting import Setting, parents

_ROOMS = (
    "host", "proc", "mask", "devices", "new", "up", "layers", "frozen", "skeleton", "bases", "empty", "kernel",
    "terminals", "parts", "shown",
)  # fmt: skip
MASK_BYTES = 2 * MAX_BYTES
SKELETON = {"": 0o755, "/dev": 0o755, "/proc": 0o555, "/sys": 0o555}
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
DEVICE_LINKS |= {"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}
PROC_FILES = (
    "cpuinfo", "devices", "diskstats", "filesystems", "loadavg", "meminfo", "misc", "stat", "swaps", "uptime",
    "version", "vmstat",
)  # fmt: skip


def root_plan(setting: Setting) -> Plan:
    """The rooms, and what of the host is needed in any case."""
    root = _root(setting)
    kept = [*setting.cgroups.directories(), *(str(PurePosixPath(path).parent) for path in _own(setting))]
    if not setting.rootless and not any(path.startswith("/dev/") for path in kept):
        kept.append("/dev")  # loop devices
    plan = [mkdir(root), mount("tmpfs", root, "tmpfs", 0, "size=16m,mode=755")]
    plan.append(mount("", root, flags=MountFlag.UNBINDABLE))  # or the copy of `/` below would contain it
    plan += [mkdir(f"{root}/{name}") for name in _ROOMS]
    # Without privilege a mount can only be copied together with all that is mounted below it.
    plan.append(bind("/", f"{root}/host", MountFlag.RECURSIVE if setting.rootless else 0))
    plan.append(bind("/proc", f"{root}/proc", MountFlag.RECURSIVE))
    for path in kept:
        plan += [*(mkdir(root + parent) for parent in parents(path)), mkdir(root + path), bind(path, root + path)]
    plan.append(bind(setting.layers_directory, f"{root}/layers"))
    plan += [mkdir(f"{root}/skeleton{path}", mode, setting.root_id) for path, mode in SKELETON.items()]
    return plan


def part_plan(setting: Setting, part: Part) -> Plan:
    """A part of the host, kept apart so that its path is looked up once. (As root, `/host` was copied without it.)"""
    root = _root(setting)
    source = f"{root}/host{part.path}" if setting.rootless else part.path
    as_it_is = part.showing is Showing.READ_ONLY
    plan = [op(Verb.TAKE, source, root + part.place, int(as_it_is), int(part.is_directory))]
    return [*plan, op(Verb.READ_ONLY, root + part.place)] if as_it_is else plan


def copied_part_plan(setting: Setting, part: Part) -> Plan:
    """As root: a file that is mounted, and that cells have copies of."""
    return [] if setting.rootless else [op(Verb.SHOW, part.path, f"{_root(setting)}/host{part.path}")]


def as_it_is_plan(part: Part) -> Plan:
    """For one that no overlay can be made of."""
    return [op(Verb.READ_ONLY, part.place)]


def move_plan(setting: Setting) -> Plan:
    """From here on the spawner sees its own root alone."""
    # Layers are copies of mounts, which the kernel refuses to make of what is unbindable.
    return [op(Verb.ROOT, _root(setting)), mount("", "/", flags=MountFlag.PRIVATE)]


def trial_plan(setting: Setting, part: Part) -> Plan:
    """Fails if no overlay can be made of a part, and leaves nothing."""
    extra = ",userxattr" if setting.rootless else ""
    return [
        mount("overlay", "/new", "overlay", MountFlag.READ_ONLY, f"lowerdir=/empty:{part.place}{extra}"),
        op(Verb.UNMOUNT, "/new"),
    ]


def last_plan(setting: Setting) -> Plan:
    """What all cells have, once it is known which parts can be overlaid."""
    plan = [*_devices(setting), *_kernel_files(setting), *_mask_layer(setting), *_bases(setting)]
    plan += cgroups.owner_plan(setting.cgroups, setting.owner)
    # Given back when the spawner ends, so that nothing is left even if this process cannot do it any more.
    plan += [mkdir(f"/shown/{number}") for number in range(MAX_MOUNTS)]
    return plan + [op(Verb.SCRATCH, path) for path in _own(setting)]


def translation_plan(path: str) -> Plan:
    """Fails if what is mounted there cannot be shown with other ids, and leaves nothing."""
    return [op(Verb.TRY_IDMAP, path, IdRange(1).first, SUBORDINATE_COUNT, SHARED.first)]


def _root(setting: Setting) -> str:
    return f"{setting.state_directory}/root"


def _own(setting: Setting) -> list[str]:
    return [setting.state_directory, setting.disk_directory]


def _devices(setting: Setting) -> Plan:
    """What each cell's /dev is made of. (In the same file system as `/empty`, so that an overlay of both has one device
    number.)"""
    if setting.rootless:
        return _devices_of_the_host()
    plan = _device_directory()
    for name, (major, minor) in DEVICES.items():
        plan.append(op(Verb.MKNOD, f"/devices/{name}", "20666", 0, major, minor))
    return plan


def _devices_of_the_host() -> Plan:
    """An ordinary user cannot make device nodes, but may show those that are there, the same to every cell. They can be
    written to though what they are mounted in is read-only."""
    plan = [mount("tmpfs", "/devices", "tmpfs", 0, "size=64k,mode=755"), *_device_directory()]
    for name in DEVICES:
        plan += [op(Verb.WRITE, f"/devices/{name}", "666", 0, ""), bind(f"/host/dev/{name}", f"/devices/{name}")]
    flags = MountFlag.REMOUNT | MountFlag.BIND | MountFlag.READ_ONLY | MountFlag.NO_SUID | MountFlag.NO_EXEC
    return [*plan, mount("", "/devices", "", flags)]


def _device_directory() -> Plan:
    links = [op(Verb.SYMLINK, target, f"/devices/{name}") for name, target in DEVICE_LINKS.items()]
    return [mkdir("/devices/pts"), mkdir("/devices/shm", 0o1777), *links]


def _kernel_files(setting: Setting) -> Plan:
    """Of the host's /proc, what says nothing of its processes."""
    if not setting.proc_is_masked:
        return []
    plan = [mount("tmpfs", "/kernel", "tmpfs", 0, "size=64k,mode=755"), mkdir("/kernel/sys")]
    plan += [op(Verb.WRITE, f"/kernel/{name}", "444", 0, "") for name in PROC_FILES]
    plan += [op(Verb.SHOW, f"/proc/{name}", f"/kernel/{name}") for name in (*PROC_FILES, "sys")]
    return [*plan, op(Verb.READ_ONLY, "/kernel")]


def _mask_layer(setting: Setting) -> Plan:
    """The layer between the host's files and the cell's own: as a layer, masks cost a cell nothing."""
    host, owner = setting.host, setting.root_id
    plan = [mount("tmpfs", "/mask", "tmpfs", 0, f"size={MASK_BYTES},mode=755")]
    if setting.rootless:  # directories are hidden by mounts of each cell: the attribute is not for ordinary users
        plan += _frame(setting)
        plan += [mkdir(f"/mask{path}", mode) for path, mode in setting.open_directories.items()]
    else:
        # What the host keeps closed stays its own, and so just as closed.
        repeated = [(path, mode, owner if is_open(mode) else 0) for path, mode in host.repeated]
        plan += [mkdir(f"/mask{path}", mode, whose) for path, mode, whose in repeated]
        for path, mode in setting.hidden_directories:
            plan += [mkdir(f"/mask{path}", mode, owner), op(Verb.XATTR, f"/mask{path}", "trusted.overlay.opaque", "y")]
    given = {path for path, _mode, _text in host.texts}
    plan += [op(Verb.MKNOD, f"/mask{path}", "20000", 0, 0, 0) for path in setting.whited_out if path not in given]
    return plan + _own_files(setting)


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


def _frame(setting: Setting) -> Plan:
    """Of a rootless cell's root, all that is not mounted: what holds the parts together, and its own directories."""
    host = setting.host
    links = [(f"/{entry.name}", entry.link_target) for entry in host.top_level if entry.link_target]
    plan = [mkdir(f"/mask{part.path}", part.mode, setting.root_id) for part in host.parts]
    links += [(f"{part.path}/{name}", target) for part in host.parts for name, target in part.links]
    plan += [op(Verb.SYMLINK, target or "", f"/mask{path}") for path, target in links]
    own = [(path, mode) for path, mode in setting.hidden_directories if not setting.is_covered(path)]
    taken_apart = [part.path for part in host.parts if part.showing is Showing.TAKEN_APART]
    return plan + [mkdir(f"/mask{path}", mode) for path, mode in own if path.rpartition("/")[0] in ("", *taken_apart)]


def _bases(setting: Setting) -> Plan:
    """The kernel refuses layers of which one lies inside the other, as the store does in `/`. An overlay of the host's
    root is a file system of its own, in which nothing lies. (`xino=off`: the cell's own overlay needs the bits.)"""
    if setting.rootless or not (setting.layers_inside_host or setting.disk_inside_host):
        return []  # (the store of an ordinary user is in what cells do not see)
    plan: Plan = []
    for index, place in enumerate(("/host", *(part.place for part in setting.host.overlaid))):
        options = f"lowerdir=/empty:{place},xino=off,redirect_dir=nofollow"  # an overlay has at least two layers
        plan += [mkdir(f"/bases/{index}"), mount("overlay", f"/bases/{index}", "overlay", MountFlag.READ_ONLY, options)]
    return plan
