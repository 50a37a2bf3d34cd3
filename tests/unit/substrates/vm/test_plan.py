"""What machines are made of, before any is made."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability, Network, Resources, SandboxSpec
from dutyfree.substrates.vm.plan import (
    LEAST_MEMORY_BYTES,
    MIB,
    Drives,
    Hardware,
    Kernel,
    Memory,
    forwarded_port,
    hardware_for,
    qemu_argv,
    unenforced_by,
)

HARDWARE = Hardware(512 * MIB, 2, 1024 * MIB)
DRIVES = Drives(Path("/m/disk.qcow2"), Path("/m/a,b/seed"))
MACHINE_ID = "0123456789abcdef0123456789abcdef"


def line(**changes: object) -> list[str]:
    options: dict[str, object] = {
        "accelerator": "tcg",
        "network": Network.NONE,
        "machine_id": MACHINE_ID,
        "kernel": Kernel(Path("/b/vmlinuz"), Path("/b/initrd")),
        **changes,
    }
    return qemu_argv(HARDWARE, DRIVES, **options)  # type: ignore[arg-type]


def after(argv: list[str], word: str) -> list[str]:
    return [argv[index + 1] for index, each in enumerate(argv) if each == word]


@given(
    memory=st.none() | st.integers(8 * MIB, 2**40),
    cpus=st.none() | st.floats(0.01, 64),
    disk=st.none() | st.integers(MIB, 2**40),
)
def test_a_machine_has_at_least_what_was_asked_for(memory: int | None, cpus: float | None, disk: int | None) -> None:
    hardware = hardware_for(Resources(memory, cpus, None, disk))
    assert hardware.memory_bytes >= max(memory or 0, LEAST_MEMORY_BYTES)
    assert hardware.cpus >= (cpus or 1)
    assert hardware.disk_bytes >= (disk or 0)
    assert hardware.memory_bytes % MIB == hardware.disk_bytes % MIB == 0


def test_no_machine_has_that_many_cpus() -> None:
    with pytest.raises(InvalidRequest, match="at most 64"):
        hardware_for(Resources(cpus=65))


def test_bounds_that_are_not_kept_are_named() -> None:
    spec = SandboxSpec(Resources(memory_bytes=64 * MIB, cpus=0.5, pids=10, disk_bytes=MIB))
    named = {each.what for each in unenforced_by(spec, HARDWARE, knows_disk=True)}
    assert named == {Capability.LIMIT_MEMORY, Capability.LIMIT_CPU, Capability.LIMIT_PIDS}
    assert Capability.LIMIT_DISK in {each.what for each in unenforced_by(spec, HARDWARE, knows_disk=False)}
    assert unenforced_by(SandboxSpec(Resources(None, None, None, None)), HARDWARE, knows_disk=False) == ()


def test_only_loopback_leads_into_a_machine_and_nothing_out_of_it() -> None:
    (netdev,) = after(line(), "-netdev")
    assert "restrict=on" in netdev
    assert "hostfwd=tcp:127.0.0.1:0-:22" in netdev
    assert "restrict=off" in after(line(network=Network.BRIDGE), "-netdev")[0]


def test_the_seed_cannot_be_written_and_commas_are_doubled() -> None:
    seed = next(drive for drive in after(line(), "-drive") if "vvfat" in drive)
    assert "dir=/m/a,,b/seed" in seed
    assert "read-only=on" in seed


@pytest.mark.parametrize("memory", [None, Memory(Path("/s/memory"), shared=False)])
def test_code_that_escapes_from_a_machine_can_start_no_program(memory: Memory | None) -> None:
    (confined,) = after(line(memory=memory, incoming=memory is not None), "-sandbox")
    assert {"on", "resourcecontrol=deny", "spawn=deny", "elevateprivileges=deny", "obsolete=deny"} <= set(
        confined.split(",")
    )


def test_a_machine_without_our_kernel_boots_from_its_disk() -> None:
    argv = line(kernel=None)
    assert "-kernel" not in argv
    assert after(argv, "-uuid") == ["01234567-89ab-cdef-0123-456789abcdef"]


def test_emulated_machines_use_the_clock_that_keeps_time() -> None:
    assert "clocksource=hpet" in after(line(), "-append")[0]
    hardware_assisted = line(accelerator="kvm")
    assert "tsc" not in after(hardware_assisted, "-append")[0]
    assert after(hardware_assisted, "-cpu") == ["host"]


def test_only_a_machine_that_is_to_be_saved_may_start_the_program_that_does_it() -> None:
    assert "spawn=allow" in after(line(memory=Memory(Path("/s/memory"), shared=True)), "-sandbox")[0]


def test_a_saved_machine_and_those_that_go_on_from_it_differ_in_nothing_that_a_guest_sees() -> None:
    source = line(memory=Memory(Path("/s/memory"), shared=True))
    copy = line(memory=Memory(Path("/s/memory"), shared=False), incoming=True)
    differing = [(one, other) for one, other in zip(source, copy, strict=False) if one != other]
    assert [(one.split(",")[-1], other.split(",")[-1]) for one, other in differing] == [
        ("spawn=allow", "spawn=deny"),
        ("share=on", "share=off"),
    ]
    assert copy[len(source) :] == ["-incoming", "defer"]


def test_the_forwarded_port_is_read_from_what_qemu_says() -> None:
    told = (
        "Hub -1 (net):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n"
        "  TCP[HOST_FORWARD]  12       127.0.0.1 40123       10.0.2.15    22     0     0\r\n"
    )
    assert forwarded_port(told) == 40123
    assert forwarded_port("nothing of the kind") is None


@given(st.text())
def test_whatever_qemu_says_is_survived(told: str) -> None:
    port = forwarded_port(told)
    assert port is None or port >= 0
