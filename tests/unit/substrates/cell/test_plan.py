"""Plans of cells are pure, so that what they promise can be checked without making one."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from dutyfree import model
from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Capability, Network, Resources, SandboxSpec, Writes
from dutyfree.substrates.cell import cgroups, hostroot, plan, spawner_root
from dutyfree.substrates.cell.caches import CacheLower
from dutyfree.substrates.cell.hostroot import HostRoot, TopLevel
from dutyfree.substrates.cell.mounts import Mount
from dutyfree.substrates.cell.operations import MountFlag, Operation, Plan, Verb, encode, op
from dutyfree.substrates.cell.parts import Listing, Part, Showing, for_root, for_user, is_open, of_installation
from dutyfree.substrates.cell.setting import Base, Lower, Setting
from dutyfree.substrates.hierarchies import Cgroups
from dutyfree.substrates.sources import Source

V1 = Cgroups(1, {"memory": "/cg/memory", "pids": "/cg/pids", "cpu": "/cg/cpu"})
V2 = Cgroups(2, {"memory": "/cg", "pids": "/cg", "cpu": "/cg"})
NONE = Cgroups(0, missing={"memory": "no", "pids": "no", "cpu": "no"})

names = st.sampled_from(["alpha", "beta", "gamma", "delta"])
directories = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@st.composite
def host_roots(draw: st.DrawFn) -> HostRoot:
    masked = draw(st.sets(directories, max_size=3))
    files = {f"{path}/secret" for path in draw(st.sets(directories, max_size=3))}
    parents = {str(parent) for path in masked | files for parent in PurePosixPath(path).parents} - {"/"}
    repeated = parents | draw(st.sets(directories, max_size=4))
    return HostRoot(
        top_level=(TopLevel("alpha", 0o755), TopLevel("beta", 0o700), TopLevel("bin", 0o777, "usr/bin")),
        own=(("/tmp", 0o1777), ("/root", 0o700)),
        masked_directories=tuple(sorted(masked)),
        masked_files=tuple(sorted(files)),
        repeated=tuple((path, draw(st.sampled_from([0o755, 0o711, 0o700]))) for path in sorted(repeated)),
        parts=(Part("/opt/data"), Part("/usr")),
        resolv_conf="nameserver 192.0.2.1\n",
        name_servers="nameserver 192.0.2.1\n",
    )


def setting(host: HostRoot, *, rootless: bool = False, groups: Cgroups = V1) -> Setting:
    return Setting("7-ab", host, groups, rootless, "/run/dutyfree/7-ab", "/var/lib/dutyfree/7-ab", "/layers-here")


def spawner_plan(setting: Setting) -> Plan:
    """All steps of the spawner, as on a machine that refuses none."""
    parts = [part for part in setting.host.parts if part.showing is not Showing.TAKEN_APART]
    binds = [operation for part in parts for operation in spawner_root.part_plan(setting, part)]
    return [
        *spawner_root.root_plan(setting),
        *binds,
        *spawner_root.move_plan(setting),
        *spawner_root.last_plan(setting),
    ]


def cell_plan(setting: Setting, cell: int, spec: SandboxSpec, base: Base | None = None) -> Plan:
    """One cell."""
    steps = cgroups.cell_steps(setting.cgroups, setting.owner, spec.resources)
    return [*plan.individual_plan(setting, cell, spec, steps, None), *plan.common_plan(setting, spec, base or Base())]


def arguments(operations: list[Operation], verb: Verb) -> list[tuple[str, ...]]:
    return [operation.arguments for operation in operations if operation.verb is verb]


def overlays(operations: list[Operation]) -> list[tuple[str, str]]:
    """Targets and options of those that a cell writes to."""
    mounts = [each for each in arguments(operations, Verb.MOUNT) if each[2] == "overlay"]
    writable = [(each[1], each[4]) for each in mounts if not int(each[3]) & MountFlag.READ_ONLY]
    return writable + [(target, options) for target, *both in arguments(operations, Verb.PART) for options in both[:1]]


HOST = HostRoot(
    top_level=(
        TopLevel("bin", 0o777, "usr/bin"),
        TopLevel("etc", 0o755),
        TopLevel("usr", 0o755),
        TopLevel("var", 0o755),
        TopLevel("vault", 0o700),
    ),
    own=(("/tmp", 0o1777), ("/var/tmp", 0o1777)),
    masked_directories=("/etc/ssh",),
    masked_files=("/etc/shadow",),
    repeated=(("/etc", 0o755), ("/var", 0o755)),
    parts=(),
    resolv_conf="",
    name_servers="nameserver 192.0.2.1\n",
)


@given(host_roots())
def test_what_the_host_closes_stays_the_hosts_own_and_as_closed(host: HostRoot) -> None:
    modes = dict(host.repeated)
    hidden = {path for path, _mode in host.own} | set(host.masked_directories)
    for path, mode, owner in arguments(spawner_plan(setting(host)), Verb.MKDIR):
        name = path.removeprefix("/mask")
        if path.startswith("/mask/") and name not in hidden:
            assert int(mode, 8) == modes[name]
            assert (int(owner) == 0) is not is_open(modes[name])


@given(host_roots())
def test_every_mask_is_opaque(host: HostRoot) -> None:
    operations = spawner_plan(setting(host))
    opaque = {path for path, name, _value in arguments(operations, Verb.XATTR) if name == "trusted.overlay.opaque"}
    whiteouts = {path for path, mode, _owner, *_device in arguments(operations, Verb.MKNOD) if mode == "20000"}
    assert {f"/mask{path}" for path in host.masked_directories} <= opaque
    assert {f"/mask{path}" for path in host.masked_files} == whiteouts


lowers = st.builds(
    Lower,
    st.sampled_from(["/layers/aa/tree", "/layers/bb/tree", "/frozen/7/upper"]),
    st.frozensets(st.tuples(st.sampled_from(["/usr", "/opt/data", "/alpha"]), st.just(0o750))),
    inside_host=st.booleans(),
)
bases = st.one_of(
    st.builds(Base, st.lists(lowers, max_size=3).map(tuple), st.just(True)),
    st.builds(Base, st.lists(lowers, min_size=1, max_size=3).map(tuple), st.just(False)),
)


@given(host_roots(), st.booleans(), st.sampled_from([Network.NONE, Network.HOST]), st.sampled_from(list(Writes)), bases)
def test_privileges_go_last_and_nothing_is_touched_by_path_in_a_root_that_is_not_the_own_one(
    host: HostRoot, rootless: bool, network: Network, upper: Writes, base: Base
) -> None:
    operations = cell_plan(setting(host, rootless=rootless), 3, SandboxSpec(network=network, writes=upper), base)
    verbs = [operation.verb for operation in operations]
    assert verbs[-2:] == [Verb.CAPS, Verb.EXEC]
    assert verbs.count(Verb.USER) == 1
    assert verbs.count(Verb.ROOT) == 1
    assert set(verbs[verbs.index(Verb.ROOT) + 1 : -2]) <= {Verb.ENSURE}
    before = operations[: verbs.index(Verb.ROOT)]
    for verb in (Verb.MKDIR, Verb.WRITE, Verb.MKNOD, Verb.ENSURE, Verb.XATTR):
        assert not any(each[0].startswith("/new") for each in arguments(before, verb))


@given(host_roots(), st.booleans(), bases)
def test_an_image_hides_the_host_and_no_layer_comes_before_the_skeleton(
    host: HostRoot, rootless: bool, base: Base
) -> None:
    operations = cell_plan(setting(host, rootless=rootless), 3, SandboxSpec(), base)
    for index, (_target, options) in enumerate(overlays(operations)):
        order = options.removeprefix("lowerdir=").split(",")[0].split(":")
        assert not (rootless and any(each.startswith("/bases") for each in order)), "an ordinary user has none"
        if base.lowers and index == 0:
            assert order[: 1 + len(base.lowers)] == ["/skeleton", *(lower.path for lower in base.lowers)]
        if not base.over_host:
            assert not any(each.startswith(("/host", "/mask")) for each in order)
        for each in order:
            if each.startswith(("/layers", "/frozen")) and index > 0:  # a part of a layer, only where it has that part
                path = next(lower.path for lower in base.lowers if each.startswith(lower.path))
                inner = each.removeprefix(path)
                assert any(lower.path == path and inner in dict(lower.inner) for lower in base.lowers)


@given(host_roots(), st.booleans(), bases)
def test_all_that_a_cell_writes_is_in_one_tree(host: HostRoot, rootless: bool, base: Base) -> None:
    for target, options in overlays(cell_plan(setting(host, rootless=rootless), 3, SandboxSpec(), base)):
        [upper] = [each.removeprefix("upperdir=") for each in options.split(",") if each.startswith("upperdir=")]
        assert upper == "/up/upper" + target.removeprefix("/new")


ROOTLESS_PARTS = (Part("/etc"), Part("/usr"), Part("/var"))


def test_a_rootless_cell_never_sees_a_directory_that_the_host_closes() -> None:
    seen = dict(hostroot.seen_directories(HOST.top_level, {"/var"}, []))
    assert seen == {"/etc": 0o755, "/usr": 0o755}
    assert hostroot.seen_directories(HOST.top_level, set(), [Mount("/vault/disk", "ext4", "0:9")]) == [
        ("/etc", 0o755), ("/usr", 0o755), ("/var", 0o755),
    ]  # fmt: skip
    data = TopLevel("data", 0o755)
    assert hostroot.seen_directories([data], set(), [Mount("/data/disk1", "ext4", "0:9")]) == []


def test_a_rootless_cell_masks_directories_by_mounts_and_files_by_its_layer_where_there_is_one() -> None:
    shown = (Part("/etc").as_it_is("/etc/hosts is mounted below it"), *ROOTLESS_PARTS[1:])
    for parts, by_layer in ((ROOTLESS_PARTS, True), (shown, False)):
        here = setting(replace(HOST, parts=parts), rootless=True)
        targets = {target for _source, target, *_rest in arguments(cell_plan(here, 3, SandboxSpec()), Verb.MOUNT)}
        assert {"/new/etc/ssh", "/new/var/tmp"} <= targets
        hidden = [path for path, *_rest in arguments(spawner_plan(here), Verb.MKNOD)]
        assert (hidden, "/new/etc/shadow" in targets) == ((["/mask/etc/shadow"], False) if by_layer else ([], True))


def test_copies_belong_to_the_cells_users() -> None:
    host = replace(HOST, owned=(("/var", 0o755, 6),), copies=(("/etc/hosts", 0o644, 0), ("/var/file", 0o640, 6)))
    host = replace(host, texts=(("/etc/shadow", 0o640, "root:!:::::::\n"),))
    for rootless, root, other in ((False, SUBORDINATE_IDS, SUBORDINATE_IDS + 6), (True, 0, 0)):
        operations = spawner_plan(setting(host, rootless=rootless))
        copies = {target: owner for _source, target, _mode, owner in arguments(operations, Verb.COPY)}
        assert copies == {"/mask/etc/hosts": str(root), "/mask/var/file": str(other)}
        assert ("/mask/etc/shadow", "640", str(root), "root:!:::::::\n") in arguments(operations, Verb.WRITE)
    assert ("/mask/etc/shadow", "20000", "0", "0", "0") not in arguments(spawner_plan(setting(host)), Verb.MKNOD)


def test_a_separate_file_system_of_the_installation_is_overlaid_on_its_own() -> None:
    host = replace(HOST, parts=(Part("/usr"),))
    assert any(source == "/usr" for source, *_rest in arguments(spawner_plan(setting(host)), Verb.TAKE))
    seen = overlays(cell_plan(setting(host), 3, SandboxSpec()))
    assert [target for target, _options in seen] == ["/new", "/new/usr"]


def test_a_rootless_cell_sees_read_only_what_cannot_be_overlaid() -> None:
    host = replace(HOST, parts=(Part("/usr").as_it_is("/usr/local is mounted below it"),))
    operations = cell_plan(setting(host, rootless=True), 3, SandboxSpec())
    assert "/new/usr" not in dict(overlays(operations))
    assert arguments(operations, Verb.SHOW) == [("/parts/0", "/new/usr")]
    assert any(
        path.endswith("/parts/0") for [path] in arguments(spawner_plan(setting(host, rootless=True)), Verb.READ_ONLY)
    )


def user_parts(*mounts: Mount, listings: dict[str, Listing] | None = None) -> dict[str, Part]:
    """What an ordinary user's cells get of /usr with these mounts."""
    found = for_user([("/usr", 0o755)], mounts, ["/usr/hidden"], lambda path, _spared: (listings or {}).get(path))
    return {part.path: part for part in found}


def test_without_privilege_a_directory_with_a_mount_below_it_is_taken_apart() -> None:
    listings = {
        "/usr": Listing((("bin", 0o755), ("closed", 0o700), ("hidden", 0o755), ("local", 0o755)), (("lib64", "lib"),)),
        "/usr/local": Listing((("bin", 0o755), ("nv", 0o755))),
    }
    parts = user_parts(Mount("/usr/local/nv", "tmpfs", "0:9"), listings=listings)
    assert {path: part.showing.value for path, part in parts.items()} == {
        "/usr": "taken apart",
        "/usr/bin": "overlaid",
        "/usr/local": "taken apart",
        "/usr/local/bin": "overlaid",
        "/usr/local/nv": "overlaid",
    }
    assert parts["/usr"].links == (("lib64", "lib"),)
    host = replace(HOST, parts=tuple(parts.values()))
    operations = cell_plan(setting(host, rootless=True), 3, SandboxSpec())
    overlaid = [target for target, _options in overlays(operations)]
    assert overlaid == ["/new", "/new/usr/bin", "/new/usr/local/bin", "/new/usr/local/nv"]


def test_a_directory_that_cannot_be_taken_apart_is_shown_read_only_with_the_reason() -> None:
    for listing in (None, Listing(files=1), Listing(tuple((f"d{n}", 0o755) for n in range(99)))):
        parts = user_parts(Mount("/usr/nv", "ext4", "0:9"), listings={"/usr": listing} if listing else {})
        assert [(each.showing, each.reason) for each in parts.values()] == [
            (Showing.READ_ONLY, "/usr/nv is mounted below it")
        ]


def test_a_file_system_that_may_not_answer_is_not_asked() -> None:
    def asked(path: str) -> int:
        assert path in ("/", "/opt"), path
        return 0o40755

    [part] = for_root([Mount("/opt/far", "fuse.sshfs", "0:9")], asked)
    assert part.showing is Showing.READ_ONLY
    assert user_parts(Mount("/usr", "nfs4", "0:9"))["/usr"].showing is Showing.READ_ONLY


def test_root_sees_single_files_read_only_and_directories_overlaid() -> None:
    modes = {"/etc/hosts": 0o100644, "/etc/socket": 0o140666, "/usr/nv": 0o40755, "/usr/a,b": 0o40755}
    parts = for_root([Mount(path, "ext4", "0:9") for path in modes], lambda path: modes.get(path, 0o40755))
    assert {part.path: part.showing.value for part in parts} == {
        "/etc/hosts": "read-only",  # (a socket is not shown at all)
        "/usr/nv": "overlaid",
        "/usr/a,b": "read-only",  # what would end an option of a mount
    }
    parts = tuple(replace(part, number=number) for number, part in enumerate(parts))
    operations = cell_plan(setting(replace(HOST, parts=parts)), 3, SandboxSpec())
    assert ("/parts/0", "/new/etc/hosts") in arguments(operations, Verb.SHOW)


def test_what_is_mounted_in_or_on_a_closed_directory_is_left_out() -> None:
    modes = {"/srv/closed": 0o40700, "/srv/closed/data": 0o40755, "/srv/private": 0o40750}
    mounts = [Mount(path, "ext4", "0:9") for path in ("/srv/closed/data", "/srv/private", "/srv/open")]
    assert [part.path for part in for_root(mounts, lambda path: modes.get(path, 0o40755))] == ["/srv/open"]


def test_masks_cover_what_is_hidden_in_a_part_that_is_shown_as_it_is() -> None:
    host = replace(HOST, parts=(Part("/var").as_it_is("so"), Part("/etc").as_it_is("so")))
    operations = cell_plan(setting(host), 3, SandboxSpec())
    targets = [target for _source, target, *_rest in arguments(operations, Verb.MOUNT)]
    assert {"/new/etc/ssh", "/new/etc/shadow", "/new/var/tmp"} <= set(targets)


def test_what_is_mounted_and_not_shown_is_named() -> None:
    host = replace(HOST, parts=(Part("/usr").as_it_is("so"),), mounted=("/srv/far", "/usr", "/usr/local"))
    assert [gap.reason for gap in setting(host).gaps if gap.what is Capability.HOST_FILES] == [
        "read-only: /usr: so", "hidden: /srv/far",
    ]  # fmt: skip


def test_data_that_is_mounted_on_the_host_is_no_part_of_its_installation() -> None:
    mounts = [Mount("/", "ext4", "0:1"), Mount("/data/disk1", "ext4", "0:2"), Mount("/usr", "ext4", "0:3")]
    assert [mount.path for mount in of_installation(mounts, ["/etc/ssh"])] == ["/usr"]


def test_no_network_means_a_namespace_of_its_own() -> None:
    for network, isolated in ((Network.NONE, True), (Network.HOST, False)):
        operations = cell_plan(setting(HOST), 3, SandboxSpec(network=network))
        assert bool(arguments(operations, Verb.NETWORK)) is isolated


def test_an_upper_on_tmpfs_is_limited_in_bytes_and_inodes() -> None:
    spec = SandboxSpec(resources=Resources(disk_bytes=64 * 2**20))
    operations = cell_plan(setting(HOST), 3, spec)
    [options] = [options for _s, target, _k, _f, options in arguments(operations, Verb.MOUNT) if target == "/up"]
    assert "size=67108864" in options
    assert "nr_inodes=8192" in options


def test_limits_on_version_1_join_one_group_per_controller() -> None:
    operations = cgroups.cell_plan(cgroups.cell_steps(V1, "7-ab", Resources(memory_bytes=2**30, pids=100, cpus=1.5)), 3)
    assert len(arguments(operations, Verb.JOIN)) == 3
    assert op(Verb.SET, "/cg/cpu/dutyfree-7-ab/3/cpu.cfs_quota_us", 150000) in operations
    assert cgroups.counters(V1, "7-ab", 3).oom == "/cg/memory/dutyfree-7-ab/3/memory.oom_control"


def test_version_1_bounds_socket_buffers_apart_where_it_can() -> None:
    resources = Resources(memory_bytes=64 * 2**20, pids=None)
    file = "/cg/memory/dutyfree-7-ab/1/memory.kmem.tcp.limit_in_bytes"
    with_sockets = cgroups.cell_plan(cgroups.cell_steps(replace(V1, sockets=True), "7-ab", resources), 1)
    assert (file, str(8 * 2**20)) in arguments(with_sockets, Verb.SET)
    assert file not in dict(arguments(cgroups.cell_plan(cgroups.cell_steps(V1, "7-ab", resources), 1), Verb.SET))


def test_limits_on_version_2_are_one_group_that_the_cell_is_cloned_into() -> None:
    operations = cgroups.cell_plan(cgroups.cell_steps(V2, "7-ab", Resources(memory_bytes=2**30, pids=100, cpus=1.5)), 3)
    assert arguments(operations, Verb.CGROUP) == [("/cg/dutyfree-7-ab/3",)]
    assert arguments(operations, Verb.INTO) == [("/cg/dutyfree-7-ab/3",)]
    assert op(Verb.SET, "/cg/dutyfree-7-ab/3/cpu.max", "150000 100000") in operations
    assert op(Verb.SET, "/cg/dutyfree-7-ab/3/memory.max", 2**30) in operations


def test_version_2_enables_controllers_on_the_way_down() -> None:
    operations = cgroups.owner_plan(V2, "7-ab")
    enabled = [path for path, text in arguments(operations, Verb.SET) if text == "+memory +pids +cpu"]
    assert enabled == ["/cg/cgroup.subtree_control", "/cg/dutyfree-7-ab/cgroup.subtree_control"]


def test_what_cannot_be_limited_is_named() -> None:
    missing = cgroups.unenforced(NONE, Resources(cpus=None))
    assert [each.what for each in missing] == [Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS]


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.sampled_from(list(Verb)), st.lists(words, max_size=4))))
def test_encoding_keeps_every_argument(steps: list[tuple[Verb, list[str]]]) -> None:
    data = encode([op(verb, *texts) for verb, texts in steps])
    decoded = []
    while data:
        verb, length = struct.unpack_from("<BI", data)
        body, data = data[5 : 5 + length], data[5 + length :]
        decoded.append((Verb(verb), [part.decode() for part in body.split(b"\0")[:-1]]))
    assert decoded == steps


def test_the_survey_of_this_host_lists_parents_first_and_masks_home() -> None:
    host = hostroot.survey()
    seen: set[str] = set()
    for path, _mode in host.repeated:
        parent = path.rsplit("/", 1)[0]
        assert parent == "" or parent in seen, path
        seen.add(path)
    own = {path for path, _mode in host.own}
    assert {"/root", "/home", "/tmp", "/run"} <= own


def test_the_place_of_core_dumps_is_masked_where_it_is_a_place_of_its_own() -> None:
    assert hostroot.core_directories("/var/cores/%e.%p\n") == ["/var/cores"]
    assert hostroot.core_directories("/cores/%h/core\n") == ["/cores"]
    for elsewhere in ("core", "|/usr/lib/systemd/systemd-coredump %P", "/core.%p", "/var/core.%p", "/var/lib/core"):
        assert hostroot.core_directories(elsewhere) == []
    assert {"/var/crash", "/var/lib/apport", "/var/lib/systemd/coredump"} <= {*hostroot.MASKED_DIRECTORIES}


def test_a_rootless_cell_does_not_see_which_keys_its_user_has() -> None:
    host = replace(HOST, has_keys=True)
    for rootless in (True, False):
        mounts = arguments(cell_plan(setting(host, rootless=rootless), 1, SandboxSpec()), Verb.MOUNT)
        assert any(mount[1] == "/new/proc/keys" for mount in mounts) is rootless


def test_a_cell_of_roots_has_device_nodes_of_its_own_that_it_cannot_change() -> None:
    shown = replace(HOST, parts=(Part("/etc").as_it_is("so"),))
    operations = cell_plan(setting(shown), 1, SandboxSpec())
    mounts = {target: rest for _source, target, *rest in arguments(operations, Verb.MOUNT)}
    kind, flags, options = mounts["/new/dev"]
    assert kind == "overlay"
    assert int(flags) & MountFlag.READ_ONLY
    assert not int(flags) & MountFlag.NO_DEV
    assert "upperdir" not in options
    sources = {target: source for source, target, *_rest in arguments(operations, Verb.MOUNT)}
    assert sources["/new/etc/shadow"] == "/new/dev/null"
    assert not any(source.startswith("/devices") for source in sources.values())


@given(host_roots(), st.booleans())
def test_what_is_shown_is_mounted_last_before_the_root_is_left(host: HostRoot, rootless: bool) -> None:
    spec = SandboxSpec(mounts=(model.Mount("/link", "/data/sets"), model.Mount("/f", "/etc/f")))
    sources = (Source("/real/sets", True, 5, 6), Source("/real/f", False, 5, 7))
    made = plan.common_plan(setting(host, rootless=rootless), spec, Base(), sources)
    shown = [each for each in made if each.verb is Verb.SOURCE]
    root = next(index for index, each in enumerate(made) if each.verb is Verb.ROOT)
    assert made[root - 2 : root] == shown
    places = ["/host/real/sets", "/host/real/f"] if rootless else ["", ""]
    identities = ["5:6", "5:7"] if rootless else ["", ""]
    assert [each.arguments[:5] for each in shown] == [
        ("0", places[0], identities[0], "1", "/data/sets"),
        ("1", places[1], identities[1], "0", "/etc/f"),
    ]
    assert all(each.arguments[5].startswith(f"lowerdir=/shown/{number}:/empty,") for number, each in enumerate(shown))


@given(host_roots())
def test_a_cell_without_mounts_has_no_operation_for_them(host: HostRoot) -> None:
    assert not [each for each in plan.common_plan(setting(host), SandboxSpec(), Base()) if each.verb is Verb.SOURCE]


@given(host_roots(), st.booleans())
def test_caches_are_overlays_with_layers_of_their_own(host: HostRoot, rootless: bool) -> None:
    spec = SandboxSpec(caches=(model.Cache("a", "/root/.a"), model.Cache("b", "/b")))
    lowers = (CacheLower("/layers/0f/tree", None if rootless else SUBORDINATE_IDS + 5), CacheLower())
    made = plan.common_plan(setting(host, rootless=rootless), spec, Base(), (), lowers)
    overlays = [each.arguments for each in made if each.verb is Verb.OVERLAY]
    assert [target for target, _options in overlays] == ["/root/.a", "/b"]
    for number, below in enumerate(("/layers/0f/tree", "/empty")):
        wanted = f"lowerdir={below},upperdir=/up/caches/{number},workdir=/up/works/cache-{number},"
        assert overlays[number][1].startswith(wanted)
    before = made[: next(index for index, each in enumerate(made) if each.verb is Verb.KEEP)]
    owners = {each.arguments[0]: each.arguments[2] for each in before if each.verb is Verb.MKDIR}
    root = "0" if rootless else str(SUBORDINATE_IDS)
    assert owners["/up/caches/0"] == (root if rootless else str(SUBORDINATE_IDS + 5))
    assert owners["/up/caches/1"] == root
    assert {"/up/works/cache-0", "/up/works/cache-1"} <= owners.keys()


def test_versions_of_caches_have_to_be_translated() -> None:
    assert "/layers" in plan.translated_mounts(Base(), [CacheLower("/layers/0f/tree")])
    assert "/layers" not in plan.translated_mounts(Base(), [CacheLower()])
