"""The content of our own base: a Debian with systemd and SSH, without services that sandboxes do not need. Pure."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import Final

from dutyfree.substrates.qemu.initrd import Entry, archive

SUITE: Final = "bookworm"
KERNEL_PACKAGE: Final = "linux-image-cloud-amd64"
NEEDED: Final = ("busybox-static", "iproute2", "kmod", "openssh-server", "systemd-sysv", "udev", KERNEL_PACKAGE)
USUAL: Final = ("ca-certificates", "git", "procps", "python3")
MODULES: Final = ("virtio_pci", "virtio_blk", "virtio_net", "virtio-rng")
"""Modules that the kernel needs to mount its root, and modules that would otherwise load only after udev starts."""
DISK: Final = "/dev/vda"
_VERSION: Final = 2

_FIRST_BOOT = """#!/bin/sh
# Takes the machine's identity from the seed's disk, and all of the disk for the root.
set -e
resize2fs /dev/vda 2> /dev/null &
mkdir -p /run/machine-seed /run/machine-seed/disk
mount -o ro /dev/vdb1 /run/machine-seed/disk
install -m 600 /run/machine-seed/disk/host_key /run/machine-seed/host_key
install -m 600 /run/machine-seed/disk/authorized_keys /run/machine-seed/authorized_keys
hostname "$(cat /run/machine-seed/disk/hostname)"
umount /run/machine-seed/disk
wait
"""
_SEED_UNIT = """[Unit]
Description=The machine's identity, from the seed's disk
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/dutyfree/first-boot
"""
_SSH_UNIT = """[Unit]
Description=OpenSSH server
DefaultDependencies=no
Requires=dutyfree-seed.service
After=dutyfree-seed.service
Conflicts=shutdown.target
Before=shutdown.target
[Service]
Type=exec
RuntimeDirectory=sshd
RuntimeDirectoryPreserve=yes
ExecStart=/usr/sbin/sshd -D
KillMode=process
Restart=always
[Install]
WantedBy=multi-user.target
"""
_SSH_CONFIG = """HostKey /run/machine-seed/host_key
AuthorizedKeysFile /run/machine-seed/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 256
MaxSessions 256
Subsystem sftp internal-sftp
"""
_NETWORK = """[Match]
Name=eth*
[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
"""
_FILES: Final = {
    "etc/fstab": ("", 0o644),
    "etc/hostname": ("dutyfree\n", 0o644),
    "etc/hosts": ("127.0.0.1 localhost\n", 0o644),
    "etc/resolv.conf": ("nameserver 10.0.2.3\n", 0o644),
    "etc/ssh/sshd_config": (_SSH_CONFIG, 0o644),
    "etc/systemd/journald.conf.d/dutyfree.conf": ("[Journal]\nStorage=volatile\nRuntimeMaxUse=8M\n", 0o644),
    "etc/systemd/network/10-all.network": (_NETWORK, 0o644),
    "etc/systemd/system/dutyfree-seed.service": (_SEED_UNIT, 0o644),
    "etc/systemd/system/ssh.service": (_SSH_UNIT, 0o644),
    "usr/lib/dutyfree/first-boot": (_FIRST_BOOT, 0o755),
}
_MASKED: Final = [
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-tmpfiles-clean.timer",
    "getty.target",
    "getty-static.service",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "systemd-logind.service",
    "systemd-user-sessions.service",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
    "dbus.service",
    "dbus.socket",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-binfmt.service",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
    "kmod-static-nodes.service",
    "systemd-pstore.service",
    "systemd-boot-system-token.service",
    "systemd-firstboot.service",
    "systemd-journal-flush.service",
    "systemd-machine-id-commit.service",
    "systemd-remount-fs.service",
    "systemd-sysusers.service",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
    "remote-fs.target",
    "ssh.socket",
    "systemd-modules-load.service",
    "systemd-network-generator.service",
]
"""Units that sandboxes do not need: no user logs in at a console, nothing is kept across boots, and the disk is removed
with the machine."""
_LINKS: Final = {
    "etc/machine-id": "/run/machine-id",
    "etc/systemd/system/default.target": "/lib/systemd/system/multi-user.target",
    "etc/systemd/system/multi-user.target.wants/systemd-networkd.service": (
        "/lib/systemd/system/systemd-networkd.service"
    ),
    "etc/systemd/system/multi-user.target.wants/ssh.service": "/etc/systemd/system/ssh.service",
    "etc/systemd/system/sshd.service": "/etc/systemd/system/ssh.service",
    **{f"etc/systemd/system/{unit}": "/dev/null" for unit in _MASKED},
}

_INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
for module in /modules/*; do $b insmod $module; done
until [ -b DISK ]; do $b usleep 10000; done
$b mount -t ext4 -o rw,noatime,noinit_itable DISK /root
$b mount -t tmpfs -o mode=755,nosuid,nodev run /root/run
for word in $($b cat /proc/cmdline); do
    case $word in dutyfree.machine_id=*) echo "${word#*=}" > /root/run/machine-id ;; esac
done
$b umount /proc
exec $b switch_root /root /sbin/init
""".replace("DISK", DISK)


def files() -> dict[str, tuple[bytes, int]]:
    """The files to write over the packages: content and mode, by path."""
    return {path: (content.encode(), mode) for path, (content, mode) in _FILES.items()}


def links() -> dict[str, str]:
    """The symbolic links to make over the packages, by path."""
    return dict(_LINKS)


def base_key(packages: tuple[str, ...], mirrors: tuple[str, ...]) -> str:
    """The digest that names a base: it covers all inputs except the packages' current versions on the mirrors."""
    parts = (_VERSION, SUITE, sorted(packages), mirrors, sorted(_FILES.items()), sorted(_LINKS.items()), _INIT, MODULES)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def load_order(wanted: tuple[str, ...], dependencies: str) -> list[str]:
    """The paths of the modules to load, each after its dependencies; `dependencies` is the text of `modules.dep`."""
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {PurePosixPath(path).name.partition(".")[0]: path for path in needs}
    order: dict[str, None] = {}
    for name in wanted:
        path = by_name[name]
        for each in (*reversed(needs[path]), path):
            order.setdefault(each)
    return list(order)


def initrd(busybox: bytes, modules: list[bytes]) -> bytes:
    """An initrd that loads the modules, mounts the disk, and starts the init on the disk."""
    entries: list[Entry] = [(name, 0o40755, b"") for name in ("bin", "dev", "modules", "proc", "root")]
    entries += [("bin/busybox", 0o100755, busybox), ("init", 0o100755, _INIT.encode())]
    entries += [(f"modules/{number:02}", 0o100644, content) for number, content in enumerate(modules)]
    return archive(entries)
