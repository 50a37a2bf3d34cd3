"""Installs our guest in a machine over SSH, and starts it."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Final

from dutyfree import native
from dutyfree.errors import SubstrateFailed
from dutyfree.guest import DEFAULT_ENVIRONMENT
from dutyfree.guest.runner import Runner
from dutyfree.model import Action
from dutyfree.substrates.engine.programs import channel_through
from dutyfree.substrates.vm import ssh
from dutyfree.substrates.vm.ssh import Login
from dutyfree.wire.channel import Channel

PLACE: Final = "/usr/lib/dutyfree/guest"
INSTALL_TIMEOUT_S: Final = 180.0
HANDSHAKE_TIMEOUT_S: Final = 90.0
_RENEW_TIMEOUT_S: Final = 60.0
_RECEIVE: Final = f"""umask 022
mkdir -p {PLACE.rpartition("/")[0]} && cat > {PLACE}.new && chmod 755 {PLACE}.new && mv {PLACE}.new {PLACE}"""
_RENEW: Final = """set -e
date -u -s "@$1" > /dev/null
hostname "$2"
echo "$3" > /run/machine-id
resize2fs /dev/vda > /dev/null 2>&1
exec perl -e '
    read(STDIN, my $seed, 64) == 64 or die "no seed";
    open(my $random, ">", "/dev/urandom") or die $!;
    ioctl($random, 0x40085203, pack("ll", 512, 64) . $seed) or die $!;
    ioctl($random, 0x5207, 0) or die $!;
'
"""
"""The ioctls are RNDADDENTROPY and RNDRESEEDCRNG: random numbers depend on the new seed from then on."""


async def install(login: Login) -> None:
    """Copy the guest to the machine. Raises SubstrateFailed, DeadlineExceeded."""
    line = login.as_root("sh", "-c", _RECEIVE)
    await ssh.send_file(login, native.guest_path(), line, timeout_s=INSTALL_TIMEOUT_S)


async def start(login: Login, *, shared: Path | None = None, sharing: bool = False, leaves: bool = False) -> Channel:
    """Start a guest through a new SSH connection, or through the shared one. Raises as `channel_through` does.

    `leaves`: background processes of its actions keep running when the guest ends.
    """
    words = (PLACE, "--stdio", "--leave") if leaves else (PLACE, "--stdio")
    argv = login.argv(login.as_root(*words), shared=shared, sharing=sharing)
    return await channel_through(argv, env=ssh.ENVIRONMENT, handshake_timeout_s=HANDSHAKE_TIMEOUT_S)


async def renew(channel: Channel, hostname: str) -> None:
    """Set the clock, the hostname, the random seed and the disk size of a machine that was restored.

    Raises SubstrateFailed, and as `Sandbox.run` does.
    """
    runner = Runner("renewal", channel, env=DEFAULT_ENVIRONMENT, cwd="/", limits=None, on_span=None)
    words = (f"{time.time():.6f}", hostname, secrets.token_hex(16))
    command = ["/bin/sh", "-c", _RENEW, "sh", *words]
    seen = await runner.run(Action(command, stdin=secrets.token_bytes(64), timeout_s=_RENEW_TIMEOUT_S))
    if not seen.ok:
        raise SubstrateFailed(f"the identity of a restored machine could not be set: {seen.stderr[-200:]!r}")
