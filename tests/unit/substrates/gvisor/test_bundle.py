"""What gVisor is told, and what is mounted for it."""

import json
from pathlib import Path

import pytest

from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS
from dutyfree.model import Mount, Network, Resources, SandboxSpec
from dutyfree.substrates.gvisor import bundle
from dutyfree.substrates.gvisor.bundle import Engine, Place
from dutyfree.substrates.memory_disk import memory_disk_bytes
from dutyfree.substrates.sources import Source

MIB = 1024 * 1024
ENGINE = Engine("/usr/bin/runsc", "systrap")
DIRECTORY = Path("/run/dutyfree/gvisor/1-abcdef-0123456789ab/7")
PLACE = Place(DIRECTORY, "1-abcdef-7", DIRECTORY / "up")
ON_DISK = Place(DIRECTORY, "1-abcdef-7", Path("/var/lib/dutyfree/gvisor/claim/7"))


def described(
    spec: SandboxSpec, *, resolv_conf: Path | None = Path("/claim/resolv.conf"), own_tmp: bool = True
) -> dict:
    found = bundle.config(PLACE, spec, guest=Path("/claim/guest"), resolv_conf=resolv_conf, own_tmp=own_tmp)
    return json.loads(json.dumps(found))


def mounts(spec: SandboxSpec, **more: object) -> dict[str, dict]:
    return {mount["destination"]: mount for mount in described(spec, **more)["mounts"]}


def namespaces(spec: SandboxSpec) -> set[str]:
    return {each["type"] for each in described(spec)["linux"]["namespaces"]}


def test_the_guest_is_the_first_process_and_comes_from_outside_the_image() -> None:
    found = described(SandboxSpec())
    assert found["process"]["args"] == [bundle.GUEST, "--stdio"]
    guest = mounts(SandboxSpec())[bundle.GUEST]
    assert guest["source"] == "/claim/guest"
    assert "ro" in guest["options"]


def test_ids_of_a_sandbox_belong_to_no_user_of_the_host() -> None:
    linux = described(SandboxSpec())["linux"]
    wanted = [{"containerID": 0, "hostID": SUBORDINATE_IDS, "size": SUBORDINATE_COUNT}]
    assert linux["uidMappings"] == linux["gidMappings"] == wanted
    assert "user" in namespaces(SandboxSpec())


def test_root_in_a_sandbox_has_no_capability_over_its_kernel() -> None:
    process = described(SandboxSpec())["process"]
    held = {name for names in process["capabilities"].values() for name in names}
    assert not held & {"CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_SYS_CHROOT"}
    assert process["noNewPrivileges"] is True


def test_a_network_namespace_of_its_own_unless_it_has_the_hosts() -> None:
    assert "network" in namespaces(SandboxSpec())
    assert "network" not in namespaces(SandboxSpec(network=Network.HOST))
    flags = {network: ENGINE.flags(PLACE.state, network) for network in (Network.NONE, Network.HOST)}
    assert "--network=none" in flags[Network.NONE]
    assert "--network=host" in flags[Network.HOST]


def test_name_servers_only_with_a_network() -> None:
    assert "/etc/resolv.conf" not in mounts(SandboxSpec())
    assert mounts(SandboxSpec(network=Network.HOST))["/etc/resolv.conf"]["source"] == "/claim/resolv.conf"
    assert "/etc/resolv.conf" not in mounts(SandboxSpec(network=Network.HOST), resolv_conf=None)


def test_what_is_written_stays_on_the_host_where_snapshots_find_it() -> None:
    assert "--overlay2=none" in ENGINE.flags(PLACE.state, Network.NONE)
    assert mounts(SandboxSpec())["/tmp"]["source"] == f"{PLACE.root}/tmp"
    assert "/tmp" not in mounts(SandboxSpec(), own_tmp=False)


def test_every_command_names_the_sandboxs_own_state() -> None:
    commands = [
        bundle.run_command(ENGINE, PLACE, Network.NONE),
        bundle.exec_command(ENGINE, PLACE, Network.NONE),
        bundle.control_command(ENGINE, PLACE, Network.NONE, "pause"),
    ]
    for command in commands:
        assert command[0] == "/usr/bin/runsc"
        assert f"--root={DIRECTORY}/state" in command
        assert PLACE.name in command


def test_the_path_of_gvisors_own_socket_fits_into_its_address() -> None:
    longest = Path("/run/dutyfree/gvisor/4194304-ffffffffffff-0123456789ab/99999/state")
    assert len(f"{longest}/runsc-4194304-ffffffffffff-99999.sock") < 108


@pytest.mark.parametrize(
    ("resources", "limit_bytes"),
    [
        (Resources(memory_bytes=64 * MIB, disk_bytes=None), 32 * MIB),
        (Resources(memory_bytes=64 * MIB, disk_bytes=8 * MIB), 8 * MIB),
        (Resources(memory_bytes=None, disk_bytes=8 * MIB), 8 * MIB),
        (Resources(memory_bytes=None, disk_bytes=None), None),
    ],
)
def test_a_disk_in_memory_leaves_half_of_it_to_processes(resources: Resources, limit_bytes: int | None) -> None:
    assert memory_disk_bytes(resources) == limit_bytes
    options = bundle.writable_space(PLACE, resources).options
    assert (f"size={limit_bytes}," in options) == (limit_bytes is not None)
    assert ("nr_inodes=" in options) == (limit_bytes is not None)


def test_layers_lie_in_their_order_below_what_is_written() -> None:
    mount = bundle.root(ON_DISK, [Path("/layers/top"), Path("/layers/bottom")])
    assert mount.target == f"{DIRECTORY}/root"
    options = dict(option.partition("=")[::2] for option in mount.options.split(","))
    assert options["lowerdir"] == "/layers/top:/layers/bottom"
    assert options["upperdir"] == str(ON_DISK.upper)
    assert Path(options["workdir"]).parent == ON_DISK.upper.parent
    assert options["redirect_dir"] == "nofollow"


def test_where_a_sandbox_writes() -> None:
    assert PLACE.in_memory
    assert not ON_DISK.in_memory


def test_a_directory_is_shown_by_an_overlay_which_nothing_can_be_written_to() -> None:
    [made] = bundle.shown(PLACE, 3, Source("/a:b,c\\d", True, 1, 2))
    assert (made.kind, made.target, made.flags & 1) == ("overlay", str(PLACE.shown(3)), 1)
    assert made.options.startswith(f"lowerdir=/a\\:b\\,c\\\\d:{PLACE.nothing},")
    assert "upperdir" not in made.options


def test_a_file_is_shown_read_only() -> None:
    made = bundle.shown(PLACE, 0, Source("/file", False, 1, 2))
    assert [each.flags & 1 for each in made] == [0, 1]
    assert made[0].source == "/file"


def test_what_is_shown_comes_last() -> None:
    spec = SandboxSpec(mounts=(Mount("/file", "/tmp/file"),))
    found = bundle.config(
        PLACE, spec, guest=Path("/g"), resolv_conf=None, own_tmp=True, sources=(Source("/file", False, 1, 2),)
    )
    last = json.loads(json.dumps(found))["mounts"][-1]
    assert (last["source"], last["destination"]) == (str(PLACE.shown(0)), "/tmp/file")
    assert {"bind", "ro", "nosuid", "nodev"} <= set(last["options"])
