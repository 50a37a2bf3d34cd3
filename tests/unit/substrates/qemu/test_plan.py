"""What a machine is made of: arguments, orders, archives and modules, before anything is started."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest, SubstrateUnavailable, Unsupported
from dutyfree.model import Image, Resources, SandboxSpec
from dutyfree.model.limits import GIB, MIB
from dutyfree.substrates.qemu import MicroVMSubstrate, blocks, plan
from dutyfree.substrates.qemu.body import identity
from dutyfree.substrates.qemu.initrd import archive, contents
from dutyfree.substrates.qemu.kernel import dependencies, find_kernel, in_load_order, load_modules

BUILD = plan.Build(Path("/k/vmlinuz"), Path("/k/initrd"), 512 * MIB, 1, "tcg", 2_000_000)
resources = st.builds(
    Resources,
    st.none() | st.integers(8 * MIB, 64 * GIB),
    st.none() | st.floats(0.01, 64),
    st.none() | st.integers(4, 10**6),
    st.none() | st.integers(MIB, 64 * GIB),
)


def argument(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize("shared", [True, False])
def test_only_a_machine_that_shares_its_memory_writes_to_the_file(shared: bool) -> None:
    argv = plan.arguments(BUILD, memory=Path("/m,1"), shared=shared, device=Path("/d"), port_fds=(5, 6))
    assert argument(argv, "-object").endswith(f"mem-path=/m,,1,share={'on' if shared else 'off'}")
    assert "-incoming" not in argv


def test_a_saved_machine_is_read_from_a_descriptor() -> None:
    argv = plan.arguments(BUILD, memory=Path("/m"), shared=False, device=Path("/d"), port_fds=(5, 6), incoming_fd=9)
    assert argument(argv, "-incoming") == "fd:9"
    assert [each for each in argv if each.startswith("socket,")] == ["socket,id=stream,fd=5", "socket,id=control,fd=6"]


def test_an_emulated_machine_is_told_how_fast_the_host_counts() -> None:
    argv = plan.arguments(BUILD, memory=Path("/m"), shared=True, device=Path("/d"), port_fds=(5, 6))
    assert "tsc_early_khz=2000000" in argument(argv, "-append")
    assert argument(argv, "-accel") == "tcg,thread=single"
    native = plan.Build(BUILD.kernel, BUILD.initrd, BUILD.memory_bytes, 2, "kvm", 2_000_000)
    argv = plan.arguments(native, memory=Path("/m"), shared=True, device=Path("/d"), port_fds=(5, 6))
    assert "tsc" not in argument(argv, "-append")
    assert (argument(argv, "-accel"), argument(argv, "-cpu")) == ("kvm", "host")


def test_every_part_of_a_build_is_in_its_key() -> None:
    others = [
        plan.Build(Path("/other"), BUILD.initrd, BUILD.memory_bytes, 1, "tcg", 2_000_000),
        plan.Build(BUILD.kernel, Path("/other"), BUILD.memory_bytes, 1, "tcg", 2_000_000),
        plan.Build(BUILD.kernel, BUILD.initrd, GIB, 1, "tcg", 2_000_000),
        plan.Build(BUILD.kernel, BUILD.initrd, BUILD.memory_bytes, 2, "tcg", 2_000_000),
        plan.Build(BUILD.kernel, BUILD.initrd, BUILD.memory_bytes, 1, "kvm", 2_000_000),
        plan.Build(BUILD.kernel, BUILD.initrd, BUILD.memory_bytes, 1, "tcg", 1),
    ]
    assert len({BUILD.key(), BUILD.key("fact"), *(each.key() for each in others)}) == 8


@given(resources)
def test_a_machine_has_room_for_what_its_sandbox_may_use(wanted: Resources) -> None:
    size_bytes = plan.machine_bytes(wanted)
    assert size_bytes % MIB == 0
    assert size_bytes >= (wanted.memory_bytes or plan.UNBOUNDED_BYTES) + 64 * MIB
    order = plan.order(wanted)
    assert len(order) == 64
    magic, _, disk, inodes, memory, pids, cpu_us = struct.unpack_from("<IIQQQQQ", order)
    assert magic.to_bytes(4, "little") == b"DFVM"
    assert memory == (wanted.memory_bytes or 0)
    assert pids == (wanted.pids or 0)
    assert 0 < disk <= (wanted.memory_bytes or plan.UNBOUNDED_BYTES) // 2
    assert disk <= (wanted.disk_bytes or disk)
    assert inodes >= 64
    assert cpu_us >= 1000 if wanted.cpus else cpu_us == 0


def test_processors_are_those_asked_for_and_otherwise_the_hosts_unless_emulated() -> None:
    assert plan.machine_cpus(Resources(cpus=1.5), "tcg", 8) == 2
    assert plan.machine_cpus(Resources(), "tcg", 8) == 1
    assert plan.machine_cpus(Resources(), "kvm", 8) == 8
    with pytest.raises(InvalidRequest, match="at most"):
        plan.machine_cpus(Resources(cpus=1000), "kvm", 8)


def unpacked(data: bytes) -> list[tuple[str, int, bytes]]:
    """As the kernel reads it: heads of 110 digits, names and contents at multiples of four."""
    found, at = [], 0
    while True:
        assert data[at : at + 6] == b"070701"
        numbers = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_size = numbers[1], numbers[6], numbers[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        at += -(-(110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found.append((name, mode, data[at : at + size]))
        at += -(-size // 4) * 4


@given(st.lists(st.tuples(st.text("abc/.", min_size=1, max_size=9), st.integers(0, 0o177777), st.binary(max_size=9))))
def test_an_archive_has_what_was_put_into_it(entries: list[tuple[str, int, bytes]]) -> None:
    assert unpacked(archive(entries)) == entries


def test_what_init_expects_is_in_the_archive() -> None:
    files = {name: (mode, data) for name, mode, data in contents(b"init!", b"guest", [b"one", b"two"])}
    assert files["init"] == (0o100755, b"init!")
    assert (files["modules/00.ko"][1], files["modules/01.ko"][1]) == (b"one", b"two")


def module(*depends: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(depends).encode() + b"\0name=x\0"


def test_modules_come_after_what_they_depend_on() -> None:
    files = {"a": module("b-c", "d"), "b_c": module("d"), "d": module(), "built_in": None}
    assert dependencies(files["a"] or b"") == ["b_c", "d"]
    assert in_load_order(["built_in", "a", "d"], files.__getitem__) == [files["d"], files["b_c"], files["a"]]


def test_modules_that_need_each_other_do_not_go_on_for_ever() -> None:
    files = {"a": module("b"), "b": module("a")}
    assert len(in_load_order(["a"], files.__getitem__)) == 2


def test_the_newest_kernel_is_found_and_its_packed_modules_are_read(tmp_path: Path) -> None:
    import lzma

    for release in ("6.9.0-1", "6.10.0-1"):
        (tmp_path / "boot").mkdir(exist_ok=True)
        (tmp_path / f"boot/vmlinuz-{release}").touch()
        (tmp_path / f"lib/modules/{release}/kernel").mkdir(parents=True)
    (tmp_path / "boot/vmlinuz-7.0-without-modules").touch()
    kernel = find_kernel(tmp_path)
    assert kernel.release == "6.10.0-1"
    (kernel.modules / "kernel/needed.ko.xz").write_bytes(lzma.compress(module("inner")))
    (kernel.modules / "modules.builtin").write_text("kernel/fs/inner.ko\n")
    assert load_modules(kernel, ["needed"]) == [module("inner")]
    with pytest.raises(SubstrateUnavailable, match="no module 'absent'"):
        load_modules(kernel, ["absent"])


def test_where_there_is_no_kernel_the_hint_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SubstrateUnavailable, match="dpkg -x"):
        find_kernel(tmp_path)


def test_the_identity_is_new_each_time_and_a_chosen_name_is_kept() -> None:
    first, second = identity("chosen"), identity("chosen")
    assert first.hostname == second.hostname == b"chosen"
    assert first.machine_id != second.machine_id
    assert first.seed != second.seed
    assert identity(SandboxSpec().hostname).hostname != identity(SandboxSpec().hostname).hostname
    assert len(first.machine_id) == 32


def test_block_images_are_named_after_their_layers() -> None:
    one, other = "sha256:" + "0" * 64, "sha256:" + "1" * 64
    names = {blocks.key(layers) for layers in ((one,), (other,), (one, other), (other, one))}
    assert len(names) == 4


def test_what_cannot_be_is_refused_before_anything_is_done() -> None:
    with pytest.raises(Unsupported, match="control plane"):
        MicroVMSubstrate(path="exec")
    with pytest.raises(InvalidRequest):
        MicroVMSubstrate(standby=-1)
    with pytest.raises(InvalidRequest):
        MicroVMSubstrate(boot="warm")  # type: ignore[arg-type]


async def test_a_substrate_that_is_not_open_makes_nothing() -> None:
    with pytest.raises(InvalidRequest, match="not open"):
        await MicroVMSubstrate(image=Image(("sha256:" + "0" * 64,), over_host=False)).create(SandboxSpec())
