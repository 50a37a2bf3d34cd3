"""Our own base, before it is built."""

from dutyfree.substrates.vm import debian

DEPENDENCIES = """kernel/a/virtio.ko:
kernel/a/virtio_ring.ko: kernel/a/virtio.ko
kernel/b/virtio_pci.ko: kernel/a/virtio_ring.ko kernel/a/virtio.ko
kernel/c/virtio-rng.ko: kernel/a/virtio.ko
"""


def test_modules_are_loaded_after_what_they_need() -> None:
    order = debian.load_order(("virtio_pci", "virtio-rng"), DEPENDENCIES)
    assert order == [
        "kernel/a/virtio.ko",
        "kernel/a/virtio_ring.ko",
        "kernel/b/virtio_pci.ko",
        "kernel/c/virtio-rng.ko",
    ]


def test_the_first_root_is_an_archive_that_the_kernel_can_read() -> None:
    archive = debian.initrd(b"busybox!", [b"one", b"three"])
    found = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * number : at + 14 + 8 * number], 16) for number in range(13)]
        size, name_size = fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        at += 110 + name_size
        at += -at % 4
        if name == "TRAILER!!!":
            break
        found[name] = (fields[1], archive[at : at + size])
        at += size
        at += -at % 4
    assert found["bin/busybox"] == (0o100755, b"busybox!")
    assert (found["modules/00"][1], found["modules/01"][1]) == (b"one", b"three")
    assert found["init"][1].startswith(b"#!/bin/busybox sh\n")


def test_a_base_is_named_by_what_it_is_made_from() -> None:
    key = debian.base_key(("git",), ("deb http://mirror bookworm main",))
    assert key == debian.base_key(("git",), ("deb http://mirror bookworm main",))
    assert key != debian.base_key(("git", "gcc"), ("deb http://mirror bookworm main",))
    assert key != debian.base_key(("git",), ())


def test_nothing_that_is_put_over_the_packages_is_there_twice() -> None:
    assert debian.files().keys().isdisjoint(debian.links())
    assert not any(path.startswith("/") for path in (*debian.files(), *debian.links()))
