"""What there is in a sandbox's directories, so that two sandboxes, or two moments of one, can be compared."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dutyfree.contract import Sandbox
from dutyfree.testing.context import run
from dutyfree.testing.expect import Broken
from dutyfree.testing.memory import MIB

PLACES = ("/tmp", "/var/tmp", "/root", "/home", "/etc", "/srv", "/opt", "/usr/local", "/dev/shm")
"""Where people and programs write."""
CONTENT = ("/tmp", "/var/tmp", "/root", "/home", "/etc", "/srv", "/dev/shm")
"""Those of them that are small enough to be read; elsewhere a file's time tells whether it was changed."""
MADE_ANEW = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/etc/machine-id")
"""What an engine gives to each sandbox, and what a machine has of its own: only content is compared, if at all."""
PROBES = "dutyfree-probe-*"
"""What isolation probes put on the host meanwhile, where sandboxes on its root file system see that it is there."""
_SHOWN = 8


async def inventory(
    box: Sandbox, places: Sequence[str] = PLACES, *, content: Sequence[str] = CONTENT, dated: bool = False
) -> frozenset[bytes]:
    """Everything in `places`: path, kind, mode, owner, links, size, time, target; sums of small files in `content`.

    `dated`: the times of directories, too, which differ between two sandboxes that are otherwise alike.
    """
    directory = f"%p %y %m %U:%G {'%T@' if dated else ''}\\0"
    other = "%p %y %m %U:%G %n %s %T@ %l\\0"
    spared = " ".join(f"! -path {shlex.quote(path)}" for path in MADE_ANEW) + f" ! -name {shlex.quote(PROBES)}"
    line = (
        "find / -maxdepth 1 -printf '%p %y %m %U:%G %l\\0';"
        f"find {_words(places)} {spared} '(' -type d -printf '{directory}' -o -printf '{other}' ')';"
        f"find {_words(content)} ! -path /etc/machine-id -type f -size -64k -exec cksum {{}} + | tr '\\n' '\\0'; exit 0"
    )
    seen = await run(box, line, output_limit_bytes=64 * MIB)
    if seen.truncated or not seen.stdout:
        raise Broken(f"the sandbox could not be listed: {seen.exit_code}, {seen.stderr[-200:]!r}")
    return frozenset(seen.stdout.split(b"\0"))


def differences(actual: frozenset[bytes], wanted: frozenset[bytes]) -> list[str]:
    """What is too much (+) and what is missing (-), the first few of it."""
    found = [f"+ {entry!r}" for entry in actual - wanted] + [f"- {entry!r}" for entry in wanted - actual]
    return sorted(found)[:_SHOWN]


def _words(places: Sequence[str]) -> str:
    return " ".join(shlex.quote(place) for place in places)
