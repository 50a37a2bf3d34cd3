"""Lists the files of a sandbox, to compare two sandboxes, or one sandbox at two moments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dutyfree.contract import Sandbox
from dutyfree.testing.context import run
from dutyfree.testing.expect import Broken
from dutyfree.testing.memory import MIB

PLACES = ("/tmp", "/var/tmp", "/root", "/home", "/etc", "/srv", "/opt", "/usr/local", "/dev/shm")
"""The directories that are listed: those in which programs usually write."""
CONTENT = ("/tmp", "/var/tmp", "/root", "/home", "/etc", "/srv", "/dev/shm")
"""The directories whose small files are also checksummed; elsewhere the modification time shows a change."""
MADE_ANEW = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/etc/machine-id")
"""Files that an engine or a VM generates for each sandbox: their metadata is not compared."""
PROBES = "dutyfree-probe-*"
"""Files that isolation probes put on the host at the same time; sandboxes on its root file system see them."""
_SHOWN = 8


async def inventory(
    box: Sandbox, places: Sequence[str] = PLACES, *, content: Sequence[str] = CONTENT, dated: bool = False
) -> frozenset[bytes]:
    """List all files in `places`: path, kind, mode, owner, links, size, time, target.

    Small files in `content` also get a checksum.
    `dated` includes the times of directories, which differ between two sandboxes with the same files.
    """
    directory = f"%p %y %m %U:%G {'%T@' if dated else ''}\\0"
    other = "%p %y %m %U:%G %n %s %T@ %l\\0"
    excluded = " ".join(f"! -path {shlex.quote(path)}" for path in MADE_ANEW) + f" ! -name {shlex.quote(PROBES)}"
    line = (
        "find / -maxdepth 1 -printf '%p %y %m %U:%G %l\\0';"
        f"find {_words(places)} {excluded} '(' -type d -printf '{directory}' -o -printf '{other}' ')';"
        f"find {_words(content)} ! -path /etc/machine-id -type f -size -64k -exec cksum {{}} + | tr '\\n' '\\0'; exit 0"
    )
    seen = await run(box, line, output_limit_bytes=64 * MIB)
    if seen.truncated or not seen.stdout:
        raise Broken(f"the sandbox could not be listed: {seen.exit_code}, {seen.stderr[-200:]!r}")
    return frozenset(seen.stdout.split(b"\0"))


def differences(actual: frozenset[bytes], wanted: frozenset[bytes]) -> list[str]:
    """The entries only in `actual` (+) and only in `wanted` (-); the first few of them."""
    found = [f"+ {entry!r}" for entry in actual - wanted] + [f"- {entry!r}" for entry in wanted - actual]
    return sorted(found)[:_SHOWN]


def _words(places: Sequence[str]) -> str:
    return " ".join(shlex.quote(place) for place in places)
