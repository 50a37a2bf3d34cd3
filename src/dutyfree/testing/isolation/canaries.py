"""Files, sockets and processes that a probe puts on the host to see whether a sandbox can reach them."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path


def private_places() -> list[Path]:
    """The host's directories that no sandbox may read and that this user can write."""
    homes = {Path(entry.pw_dir) for entry in pwd.getpwall() if entry.pw_uid >= 1000 or entry.pw_uid == 0}
    homes.add(Path.home())
    usual = {Path(name) for name in ("/tmp", "/var/tmp", "/run", "/dev/shm", tempfile.gettempdir())}
    usual |= {Path(name) for name in ("/var/crash", "/var/lib/apport", "/var/lib/systemd/coredump")}
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = homes | usual | ({Path(runtime)} if runtime else set())
    places |= {home / ".ssh" for home in homes}
    # os.access() comes first: in another user's home, is_dir() would raise PermissionError.
    return sorted(
        place for place in places if os.access(place, os.W_OK | os.X_OK) and place.is_dir() and place != Path("/")
    )


@contextmanager
def canary_files(token: str) -> Iterator[list[Path]]:
    """Make a world-readable file with the token as content in each private place."""
    with ExitStack() as stack:
        made = []
        for place in private_places():
            path = place / f"{token}.canary"
            path.write_text(token)
            stack.callback(path.unlink, missing_ok=True)
            path.chmod(0o644)
            made.append(path)
        yield made


@contextmanager
def private_canaries(token: str) -> Iterator[list[Path]]:
    """Make a private file, and a file in a private directory, in each system directory; the token is their content."""
    with ExitStack() as stack:
        made = []
        for place in map(
            Path, ("/etc", "/opt", "/srv", "/usr/local/bin", "/usr/local/etc", "/var/cache", "/var/lib/dpkg")
        ):
            if not os.access(place, os.W_OK | os.X_OK):
                continue
            closed = place / f"{token}.closed"
            closed.mkdir(mode=0o700)
            stack.callback(closed.rmdir)
            for path, mode in ((place / f"{token}.private", 0o600), (closed / "open", 0o644)):
                stack.callback(path.unlink)
                path.touch(mode=0o600)
                path.write_text(token)
                path.chmod(mode)
                made.append(path)
        yield made


@contextmanager
def unix_listeners(token: str) -> Iterator[list[str]]:
    """Listen on a world-writable socket in each private place and in each directory where services keep sockets."""
    services = [Path(name) for name in ("/opt", "/srv", "/var/lib") if os.access(name, os.W_OK | os.X_OK)]
    with ExitStack() as stack:
        made = []
        for place in [*private_places(), *services]:
            path = place / f"{token}.sock"
            if len(os.fsencode(path)) > 100:
                continue
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            stack.callback(path.unlink, missing_ok=True)
            path.chmod(0o777)
            listener.listen(8)
            made.append(str(path))
        yield made


@contextmanager
def abstract_listener(token: str) -> Iterator[str]:
    """Listen on an abstract socket; yields its name with `@` in front."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{token}")
        listener.listen(8)
        yield f"@{token}"


@contextmanager
def tcp_listener(address: str) -> Iterator[int]:
    """Listen on a TCP socket on `address`; yields its port."""
    with socket.socket(socket.AF_INET) as listener:
        listener.bind((address, 0))
        listener.listen(8)
        yield listener.getsockname()[1]


@asynccontextmanager
async def host_process(token: str) -> AsyncIterator[int]:
    """Start a process on the host with the token on its command line; yields its pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", "import time; time.sleep(300)", token, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()
