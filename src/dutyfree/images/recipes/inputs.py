"""Inputs of stages: local files, and git repositories at a commit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dutyfree.errors import DutyfreeError, InfraFailed, InvalidRequest
from dutyfree.images.commands import CommandFailed, run_command
from dutyfree.images.files import open_regular
from dutyfree.model.recipe import GitInput

MAX_ENTRIES: Final = 1_000_000
MAX_BYTES: Final = 64 * 1024**3
GIT_TIMEOUT_S: Final = 1800.0
_GIT_CONFIG: Final = """\
[safe]
\tdirectory = *
[core]
\thooksPath = /dev/null
\tfsmonitor = false
\tlogAllRefUpdates = false
[init]
\tdefaultBranch = main
[gc]
\tauto = 0
[advice]
\tdetachedHead = false
"""
"""The whole configuration of git. `-c` is not enough: git does not pass it to the process that serves a local path."""
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s]*@")
_UNREACHABLE: Final = re.compile(
    r"Could(n't| not) (resolve|connect)|Failed to connect|Connection (refused|reset|timed out)|No route|early EOF|RPC"
)


def fingerprint(source: Path) -> str:
    """A digest of a file or directory tree: contents, names, modes and symlinks, but not times and owners.

    Raises InvalidRequest if the source is missing or cannot be read, has anything but files, directories and (below
    the top) symlinks, or more than MAX_ENTRIES entries or MAX_BYTES bytes.
    """
    whole = hashlib.sha256()
    left_bytes = MAX_BYTES
    try:
        for count, (name, path) in enumerate(_entries(source)):
            info = path.stat() if not name else path.lstat()
            left_bytes -= info.st_size
            if count >= MAX_ENTRIES or left_bytes < 0:
                raise InvalidRequest(f"{str(source)!r} has more than {MAX_ENTRIES} entries, or {MAX_BYTES} bytes")
            record = [name, f"{info.st_mode:o}", _content(path, info.st_mode)]
            whole.update(json.dumps(record).encode() + b"\n")
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(error.filename or source)!r}: {error.strerror}") from error
    return "sha256:" + whole.hexdigest()


def _entries(source: Path) -> Iterator[tuple[str, Path]]:
    """`source`, under the name '', and everything below it with relative names, in an order that all machines share."""
    waiting = [("", source)]
    while waiting:
        name, path = waiting.pop()
        yield name, path
        if path.is_dir() and not (name and path.is_symlink()):
            # Sort as bytes: the order must not depend on the locale, and names may be invalid UTF-8.
            below = sorted(path.iterdir(), key=os.fsencode, reverse=True)
            waiting += [(f"{name}/{each.name}" if name else each.name, each) for each in below]


def _content(path: Path, mode: int) -> str:
    if stat.S_ISDIR(mode):
        return ""
    if stat.S_ISLNK(mode):
        return str(path.readlink())
    if not stat.S_ISREG(mode):
        raise InvalidRequest(f"{str(path)!r} is neither a file, a directory nor a symlink")
    return file_digest(path)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Raises OSError, InvalidRequest unless it is a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def checkout(wanted: GitInput, directory: Path, *, timeout_s: float = GIT_TIMEOUT_S) -> Path:
    """Fetch the repository up to the wanted commit, without later commits, into the empty `directory`.

    Returns the working tree, in which the commit is checked out without branch and remote. git runs without hooks and
    without the user's configuration, but can use the user's SSH keys. Raises InvalidRequest for an address or a commit
    that does not exist, InfraFailed for a server that cannot be reached, DeadlineExceeded, and SubstrateUnavailable
    without git.
    """
    config = directory / "config"
    config.write_text(_GIT_CONFIG)
    tree, mirror = directory / "tree", directory / "mirror"
    git = _Git(wanted, _git_environment(config), timeout_s)
    await git.must("init", "--quiet", "--template=", "--object-format=" + _hash_of(wanted.commit), str(tree))
    try:
        await git.run("-C", str(tree), "fetch", "--quiet", "--no-tags", "--", wanted.url, wanted.commit)
    except CommandFailed:
        # Some servers refuse to send a commit by its id: fetch everything, and take the commit from that.
        await git.must("clone", "--quiet", "--mirror", "--template=", "--", wanted.url, str(mirror))
        await git.must("-C", str(tree), "fetch", "--quiet", "--no-tags", "--", str(mirror), wanted.commit)
    await git.must("-C", str(tree), "checkout", "--quiet", "--detach", wanted.commit)
    found = (await git.must("-C", str(tree), "rev-parse", "HEAD")).strip()
    if found != wanted.commit:
        raise git.refusal(f"found {found} instead")
    (tree / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
    return tree


class _Git:
    def __init__(self, wanted: GitInput, env: Mapping[str, str], timeout_s: float) -> None:
        self._wanted = wanted
        self._env = env
        self._timeout_s = timeout_s

    async def run(self, *words: str) -> str:
        return await run_command(["git", *words], env=self._env, timeout_s=self._timeout_s)

    async def must(self, *words: str) -> str:
        try:
            return await self.run(*words)
        except CommandFailed as error:
            raise self.refusal(str(error)) from error

    def refusal(self, why: str) -> DutyfreeError:
        url = _CREDENTIALS.sub("", self._wanted.url)
        why = _CREDENTIALS.sub("", why.replace(self._wanted.url, url))
        message = f"cannot fetch commit {self._wanted.commit} of {url!r}: {why}"
        if _UNREACHABLE.search(why):
            return InfraFailed(message, hint="check the network, and try again")
        return InvalidRequest(message, hint="check the address, and that the commit was pushed there")


def _git_environment(config: Path) -> dict[str, str]:
    ours = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "LC_ALL": "C.UTF-8",
    }
    # Without GIT_DIR and similar variables, which a hook that starts a build may set: git would use that repository.
    return {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}, **ours}


def _hash_of(commit: str) -> str:
    return "sha1" if len(commit) == 40 else "sha256"
