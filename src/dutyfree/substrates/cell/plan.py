"""What it takes to make a cell, as a list of operations. Everything here is pure.

A cell starts as a copy of the spawner's mount namespace (`spawner_root` says what is where), adds what is its own, and
moves into `/new`. All that it changes is in `/up/upper`, as one tree, also where its root is made of several overlays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dutyfree.images.ownership import SUBORDINATE_COUNT
from dutyfree.model import Network, SandboxSpec, Writes
from dutyfree.substrates.cell.caches import CacheLower
from dutyfree.substrates.cell.cgroups import GroupStep, cell_plan
from dutyfree.substrates.cell.ids import SHARED, IdRange
from dutyfree.substrates.cell.operations import MountFlag, Operation, Plan, Verb, bind, mkdir, mount, op
from dutyfree.substrates.cell.parts import Part, Showing
from dutyfree.substrates.cell.setting import Base, Setting, parents
from dutyfree.substrates.memory_disk import inodes_for, memory_disk_bytes
from dutyfree.substrates.sources import Source

TTY_GROUP = 5
TERMINALS = 64
"""How many pseudo-terminals a cell may have open at once: the machine has 3,072 for all cells together."""
LONG_LINK = 256
"""How long a link's text is that tmpfs keeps in a page; one of up to 128 bytes is kept with the inode."""
IMAGE = "/proc/self/fd/63"
"""Where the spawner shows a cell its disk."""
SHIELD = MountFlag.NO_SUID | MountFlag.NO_DEV | MountFlag.NO_EXEC

HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

NAMESPACES = {"mnt": 0x0002_0000, "uts": 0x0400_0000, "ipc": 0x0800_0000, "pid": 0x2000_0000}
"""Those that a cell is cloned into; network, cgroup and user namespaces come in their turn."""
KEPT_CAPABILITIES = {
    "chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6, "setuid": 7, "setpcap": 8,
    "net_bind_service": 10, "audit_write": 29, "setfcap": 31,
}  # fmt: skip


def translated_mounts(base: Base, caches: Sequence[CacheLower] = ()) -> list[str]:
    """What a cell stands on with owners that have to be translated into its own ids."""
    layers = sorted({*(lower.mount for lower in base.lowers), *("/layers" for lower in caches if lower.path)})
    skeleton = ["/skeleton"] if base.lowers or not base.over_host else []
    return [*(["/mask"] if base.over_host else []), *skeleton, *layers]


def can_have_own_ids(setting: Setting, spec: SandboxSpec, base: Base, caches: Sequence[CacheLower] = ()) -> bool:
    """Whether all that a cell stands on and writes to can be translated."""
    used = {*translated_mounts(base, caches), *([setting.disk_mount] if spec.writes is Writes.DISK else [])}
    return setting.own_ids and not used & setting.untranslated


def individual_plan(
    setting: Setting,
    cell: int,
    spec: SandboxSpec,
    groups: Iterable[GroupStep],
    template: str | None,
    ids: IdRange = SHARED,
) -> Plan:
    """What no two cells have in common: the number, the ids, the cgroups, a place on disk.

    `groups` are the cgroups of all cells with these limits (`cgroups.cell_steps`), worked out once.
    """
    user = op(Verb.USER, 0, 1, 0, 0)
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={TERMINALS}"
    if not setting.rootless:
        user = op(Verb.USER, ids.first, SUBORDINATE_COUNT, ids.account, setting.root_id)
        terminals += f",gid={ids.first + TTY_GROUP}"
    plan = [op(Verb.CELL, cell), user, *cell_plan(groups, cell)]
    plan.append(mount("devpts", "/terminals", "devpts", MountFlag.NO_SUID | MountFlag.NO_EXEC, terminals))
    path = f"{setting.disk_directory}/{cell}"
    if spec.writes is Writes.MEMORY:
        return plan
    if template is None:
        return [*plan, op(Verb.SCRATCH, path), bind(path, "/up")]
    options = "nobarrier,noinit_itable"
    return [*plan, op(Verb.IMAGE, template, path), mount(IMAGE, "/up", "ext4", MountFlag.NO_DEV, options)]


def common_plan(
    setting: Setting,
    spec: SandboxSpec,
    base: Base,
    sources: Sequence[Source] = (),
    caches: Sequence[CacheLower] = (),
) -> Plan:
    """What every cell of that base, network, upper, disk and memory size, hostname, mounts and versions of caches does,
    planned once."""
    isolated = spec.network is Network.NONE
    plan = [op(Verb.UNSHARE, sum(NAMESPACES.values()))]
    if setting.cgroups.homes:
        plan.append(op(Verb.CGROUP_NS))
    plan.append(op(Verb.HOSTNAME, spec.hostname))
    if isolated:
        plan.append(op(Verb.NETWORK))
    plan += _writable_space(setting, spec, base, caches)
    plan += [op(Verb.IDMAP, path) for path in translated_mounts(base, caches)] if setting.own_ids else []
    plan += _root(setting, base)
    plan += _kernel_file_systems(setting, base)
    plan += _shared_memory(setting, spec)
    plan += _shown(setting, spec, sources)
    plan += _caches(setting, spec, caches)
    plan.append(op(Verb.ROOT, "/new"))
    # Only now: an image may have links in place of these files' directories, and they lead nowhere but into itself.
    resolv_conf = setting.host.resolv_conf if base.over_host else setting.host.name_servers
    if not isolated and resolv_conf:
        plan.append(op(Verb.ENSURE, "/etc/resolv.conf", "644", "cell", resolv_conf, 1))
    if not base.over_host:
        plan.append(op(Verb.ENSURE, "/etc/hosts", "644", "cell", HOSTS, 0))
    plan.append(op(Verb.CAPS, sum(1 << number for number in KEPT_CAPABILITIES.values())))
    plan.append(op(Verb.EXEC, "dutyfree-guest", "--fd", 3))
    return plan


def _writable_space(setting: Setting, spec: SandboxSpec, base: Base, caches: Sequence[CacheLower]) -> Plan:
    """`/up`: memory of a limited size, unless it is on disk and mounted already; and all directories in it, before
    owners are translated."""
    limit, owner = memory_disk_bytes(spec.resources), setting.root_id
    plan: Plan = []
    if spec.writes is Writes.MEMORY:
        bounds = f"size={limit},nr_inodes={inodes_for(limit)}," if limit is not None else ""
        plan = [mount("tmpfs", "/up", "tmpfs", MountFlag.NO_DEV, f"{bounds}mode=755")]
        # A file system of which nothing is used looks broken to programs. The text of a long link takes a page.
        plan.append(op(Verb.SYMLINK, "-" * LONG_LINK, "/up/used"))
    mode = base.lowers[0].mode if base.lowers else 0o755
    plan += [mkdir("/up/upper", mode, owner), mkdir("/up/work")]
    if base.over_host:
        plan += _spaces(setting, base)
    plan += [mkdir("/up/works"), mkdir("/up/caches")] if caches else []
    for number, lower in enumerate(caches):
        plan.append(mkdir(f"/up/caches/{number}", 0o755, owner if lower.owner is None else lower.owner))
        plan.append(mkdir(f"/up/works/cache-{number}"))
    if spec.writes is Writes.MEMORY:
        plan.append(mkdir("/up/shm", 0o1777, owner))
    return [*plan, op(Verb.KEEP, "/up"), *([op(Verb.IDMAP, "/up")] if setting.own_ids else [])]


def _shared_memory(setting: Setting, spec: SandboxSpec) -> Plan:
    """`/dev/shm`: always memory, and part of the writable space where that is memory, too."""
    if spec.writes is Writes.MEMORY:
        return [bind("/up/shm", "/new/dev/shm")]
    limit = memory_disk_bytes(spec.resources)
    bounds = f"size={limit}," if limit is not None else ""
    return [mount("tmpfs", "/new/dev/shm", "tmpfs", SHIELD & ~MountFlag.NO_EXEC, f"{bounds}mode=1777")]


def _shown(setting: Setting, spec: SandboxSpec, sources: Sequence[Source]) -> Plan:
    """What the caller shows of the host, last of all mounts. An overlay has at least two layers."""
    plan: Plan = []
    for number, (wanted, source) in enumerate(zip(spec.mounts, sources, strict=True)):
        place = f"/host{source.path}" if setting.rootless else ""
        extra = "userxattr" if setting.rootless else "redirect_dir=nofollow"
        options = f"lowerdir=/shown/{number}:/empty,xino={'on' if setting.one_file_system else 'off'},{extra}"
        identity = f"{source.device}:{source.inode}" if setting.rootless else ""
        plan.append(op(Verb.SOURCE, number, place, identity, int(source.is_directory), wanted.target, options))
    return plan


def _caches(setting: Setting, spec: SandboxSpec, lowers: Sequence[CacheLower]) -> Plan:
    """Over the present version of each cache, a layer of the cell's own, apart from its other files."""
    plan: Plan = []
    for number, (wanted, lower) in enumerate(zip(spec.caches, lowers, strict=True)):
        below = [lower.path or "/empty"]
        options = _options(setting, below, f"/up/caches/{number}", f"/up/works/cache-{number}")
        plan.append(op(Verb.OVERLAY, wanted.target, options))
    return plan


def _root(setting: Setting, base: Base) -> Plan:
    if not base.over_host:
        lowers = ["/skeleton", *base.directories()]
        return [_overlay(setting, "/new", lowers, "/up/upper", "/up/work")]
    return _host_root(setting, base)


def _spaces(setting: Setting, base: Base) -> Plan:
    """The directories of the writable space that parts of the root are mounted on, or that they write to.

    They have to be there before the root is mounted.
    """
    owner = setting.root_id
    wanted = {part.path: part.mode for part in setting.host.parts if setting.rootless or part.is_overlaid}
    wanted |= dict(setting.mounted_masks)
    plan: Plan = [mkdir("/up/works")] if wanted else []
    for path, mode in wanted.items():
        plan += [mkdir(f"/up/upper{each}", 0o755, owner) for each in parents(path) if each not in wanted]
        plan.append(mkdir(f"/up/upper{path}", base.mode(path, mode), owner))
    return plan


def _host_root(setting: Setting, base: Base) -> Plan:
    """The host's root in one piece (without privilege, a frame for its parts), and what is mounted by itself in it."""
    host = setting.host
    skeleton = ["/skeleton"] if base.lowers else []
    ready = not setting.rootless and any(lower.inside_host for lower in base.lowers)
    bases = {part.path: f"/bases/{index}" for index, part in enumerate(host.overlaid, 1)} if ready else {}
    below = ["/mask"] if setting.rootless else ["/mask", "/bases/0" if ready else "/host"]
    plan = [_overlay(setting, "/new", [*skeleton, *base.directories(), *below], "/up/upper", "/up/work")]
    for part in host.parts:
        path = part.path
        if part.showing is Showing.READ_ONLY:
            plan.append(op(Verb.SHOW, part.place, f"/new{path}"))
        elif part.showing is Showing.OVERLAID:
            above = [*base.directories(path), *_mask_of(setting, path)]
            plan += _part(setting, part, above, bases.get(path, part.place))
    for index, (path, _mode) in enumerate(setting.mounted_masks):
        lowers = base.directories(path)
        plan += _mask(setting, path, index, lowers) if lowers else [bind(f"/up/upper{path}", f"/new{path}")]
    return plan


def _mask_of(setting: Setting, path: str) -> list[str]:
    """The mask layer's directory for a part, if it has one."""
    has_one = setting.rootless or any(path == repeated for repeated, _mode in setting.host.repeated)
    return [f"/mask{path}"] if has_one else []


def _part(setting: Setting, part: Part, above: list[str], host: str) -> Plan:
    """A directory of the host's, which the host may remove at any time."""
    work = f"/up/works/{part.number}"
    lowers = [[*above, host], above or ["/empty"]]
    with_it, without = (_options(setting, each, f"/up/upper{part.path}", work) for each in lowers)
    return [mkdir(work), op(Verb.PART, f"/new{part.path}", with_it, without)]


def _mask(setting: Setting, path: str, index: int, lowers: list[str]) -> Plan:
    work = f"/up/works/mask-{index}"
    return [mkdir(work), _overlay(setting, f"/new{path}", lowers, f"/up/upper{path}", work)]


def _overlay(setting: Setting, target: str, lowers: list[str], upper: str, work: str) -> Operation:
    return mount("overlay", target, "overlay", MountFlag.NO_DEV, _options(setting, lowers, upper, work))


def _options(setting: Setting, lowers: list[str], upper: str, work: str) -> str:
    # `volatile`: nothing of a cell has to survive a crash of the machine, so nothing waits for a disk. Without
    # redirects, an upper is a layer that every tool understands, and a hostile layer cannot lead anywhere. With
    # `xino`, all files have one device number, and stat and readdir name the same inode (docs/explanation/cells.md);
    # `xino=auto` would leave it off, since the kernel does not know how large a tmpfs's inode numbers may get.
    extra = "userxattr" if setting.rootless else "index=off,redirect_dir=nofollow,volatile"
    xino = "on" if setting.one_file_system else "off"
    return f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},xino={xino},{extra}"


def _kernel_file_systems(setting: Setting, base: Base) -> Plan:
    if setting.proc_is_masked:
        proc = bind("/kernel", "/new/proc", MountFlag.RECURSIVE)
    else:
        proc = mount("proc", "/new/proc", "proc", SHIELD | (MountFlag.READ_ONLY if setting.proc_is_read_only else 0))
    hidden_files = setting.mounted_file_masks if base.over_host else []
    if setting.rootless and setting.host.has_keys and not setting.proc_is_masked:
        # To the kernel, an ordinary user's cell is that user: it may see which keys the user has.
        hidden_files = [*hidden_files, "/proc/keys"]
    return [
        proc,
        _devices(setting),
        mount("/terminals", "/new/dev/pts", flags=MountFlag.MOVE),
        *(bind("/new/dev/null", f"/new{path}") for path in hidden_files),
    ]


def _devices(setting: Setting) -> Operation:
    """A read-only /dev; device nodes can be written to all the same.

    Each overlay has inodes of its own, and so locks and events of its own, in a quarter of the time that a tmpfs with
    nodes takes. In an ordinary user's overlay no device node can be opened.
    """
    if setting.rootless:
        return bind("/devices", "/new/dev", MountFlag.RECURSIVE)
    flags = MountFlag.READ_ONLY | MountFlag.NO_SUID | MountFlag.NO_EXEC
    return mount("overlay", "/new/dev", "overlay", flags, "lowerdir=/devices:/empty,xino=off,redirect_dir=nofollow")
