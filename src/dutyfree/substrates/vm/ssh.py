"""Logs in with OpenSSH's client: its command line, keys, and waiting for a machine's SSH server."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import DeadlineExceeded, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.commands import CommandFailed, run_command

ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
"""The client's whole environment: no agent, no display, no variables to forward."""
USUAL_PORT: Final = 22
CONNECT_TIMEOUT_S: Final = 60
ALIVE_INTERVAL_S: Final = 1
ALIVE_MISSES: Final = 3
"""The client sends a keep-alive each second, and ends the connection one second after 3 unanswered ones."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 2.0, 30.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to one machine, and how to verify that it is that machine."""

    host: str
    port: int
    user: str
    key: Path
    """Our private key."""
    known_hosts: Path
    trust_first: bool = False
    """Whether to trust the first host key that the machine shows if `known_hosts` has none; later keys must match."""

    def argv(self, command: str, *, shared: Path | None = None, sharing: bool = False) -> list[str]:
        """The client's command line. `shared`: the socket of a connection to reuse or, with `sharing`, to create."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_TIMEOUT_S),
            "ControlMaster": "yes" if sharing else "no",
            "ControlPath": "none" if shared is None else str(shared).replace("%", "%%"),
            "ControlPersist": "no",
            "EscapeChar": "none",
            "ForwardAgent": "no",
            "GlobalKnownHostsFile": "/dev/null",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "LogLevel": "ERROR",
            "PreferredAuthentications": "publickey",
            "RequestTTY": "no",
            "ServerAliveCountMax": str(ALIVE_MISSES),
            "ServerAliveInterval": str(ALIVE_INTERVAL_S),
            "StrictHostKeyChecking": "accept-new" if self.trust_first else "yes",
            "UserKnownHostsFile": _quoted(self.known_hosts),
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        place = ["-i", str(self.key), "-p", str(self.port), "-l", self.user]
        return ["ssh", "-F", "none", *words, *place, "--", self.host, command]

    def as_root(self, *words: str) -> str:
        """The shell line that runs `words` as root in the machine."""
        prefix = () if self.user == "root" else ("sudo", "-n", "--")
        return shlex.join((*prefix, *words))


def known_hosts_line(host: str, port: int, public_key: str) -> str:
    """The line of `known_hosts` that assigns this host key to this machine."""
    kind, content = public_key.split()[:2]
    # For port 22, the client looks for the host name without a port.
    place = host if port == USUAL_PORT else f"[{host}]:{port}"
    return f"{place} {kind} {content}\n"


async def make_key(path: Path, comment: str) -> str:
    """Make a key pair, `path` and `path.pub`. Returns the public key. Raises SubstrateUnavailable without OpenSSH."""
    await _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], 20.0)
    return path.with_name(f"{path.name}.pub").read_text().strip()


async def run_there(login: Login, command: str, *, timeout_s: float) -> str:
    """Run a shell line in a new connection, and return the end of its output. Raises SubstrateFailed."""
    return await _run(login.argv(command), timeout_s)


async def send_file(login: Login, content: Path, command: str, *, timeout_s: float) -> None:
    """Run a shell line with the file as its standard input. Raises SubstrateFailed."""
    feeding = ["sh", "-c", 'exec < "$0" && exec "$@"', str(content), *login.argv(command)]
    await _run(feeding, timeout_s)


async def wait_for_server(host: str, port: int, *, within_s: float, check: Callable[[], None]) -> None:
    """Wait until an SSH server answers at the address. Raises DeadlineExceeded, and what `check` raises."""
    wait_s = _FIRST_WAIT_S
    try:
        async with asyncio.timeout(within_s):
            while not await _banner(host, port, wait_s):
                check()
                await asyncio.sleep(_POLL_S)
                # The server starts a process for each connection: on a busy machine, short timeouts only add load.
                wait_s = min(wait_s * 1.5, _LONGEST_WAIT_S)
    except TimeoutError:
        raise DeadlineExceeded(f"no SSH server wait_for_server at {host}:{port} within {within_s:g} s") from None


def check_client() -> None:
    """Raise SubstrateUnavailable if OpenSSH's client is not installed."""
    for program in ("ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            raise SubstrateUnavailable(
                f"there is no program {program!r}", hint="Debian: apt-get install openssh-client"
            )


async def _banner(host: str, port: int, wait_s: float) -> bool:
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(wait_s):
            reader, writer = await asyncio.open_connection(host, port, limit=1024)
            return (await reader.readexactly(4)) == b"SSH-"
    except (OSError, EOFError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


async def _run(command: Sequence[str], timeout_s: float) -> str:
    try:
        return await run_command(command, timeout_s=timeout_s, env=ENVIRONMENT)
    except CommandFailed as error:
        program = "ssh-keygen" if command[0] == "ssh-keygen" else "ssh"
        raise SubstrateFailed(f"{program} failed: {error}") from error


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
