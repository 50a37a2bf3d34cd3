"""attrs as a git repository with commit ids that are the same on every machine and at any time.

Two commits: the release, and one in which `exclude` no longer knows fields by their names. One test detects that.
Everything that a commit id depends on is in the stream for `git fast-import`, so that the umask, the clock and
the configuration of git have no influence.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dutyfree.errors import InfraFailed, SubstrateUnavailable

RELEASE_COMMIT: Final = "eab1b799bc3b1fb2f989b64cbc245d0794f58759"
BUGGY_COMMIT: Final = "b874b64baa99b6b0658bd9508f7437ac5e6bc9b0"
_AUTHOR: Final = "Dutyfree <dutyfree@example.org>"
_RELEASED: Final = 1741872000
"""2025-03-13, in seconds since 1970; the bug came a day later."""
_DAY_S: Final = 86400
_TOUCHED: Final = "src/attr/filters.py"
_RIGHT: Final = b"""\
        return not (
            value.__class__ in cls
            or attribute.name in names
            or attribute in attrs
        )
"""
_WRONG: Final = b"""\
        return not (value.__class__ in cls or attribute in attrs)
"""
_GIT_TIMEOUT_S: Final = 120.0


def make_bundle(archive: Path, target: Path, scratch: Path) -> None:
    """Write the history of the source distribution `archive` as a git bundle; `scratch` is an empty directory.

    Raises InfraFailed if the result is not the history that the workloads name, SubstrateUnavailable without git.
    """
    repository = scratch / "repository"
    _git("init", "--quiet", "--bare", "--template=", "--object-format=sha1", "--initial-branch=main", str(repository))
    _git("-C", str(repository), "fast-import", "--quiet", data=b"".join(_stream(archive)))
    found = _git("-C", str(repository), "rev-parse", "main~1", "main").split()
    if found != [RELEASE_COMMIT, BUGGY_COMMIT]:
        raise InfraFailed(f"{archive.name} gave the commits {found}, not {[RELEASE_COMMIT, BUGGY_COMMIT]}")
    _git("-C", str(repository), "bundle", "create", "--quiet", str(target), "HEAD", "main")


def _stream(archive: Path) -> Iterator[bytes]:
    touched = b""
    yield _commit(1, "Release 25.3.0", _RELEASED)
    with tarfile.open(archive) as files:
        for member in sorted(files, key=lambda member: member.name):
            content = files.extractfile(member) if member.isfile() else None
            if content is None:
                continue  # git keeps no directories
            data, path = content.read(), member.name.partition("/")[2]
            if path == _TOUCHED:
                touched = data
            yield _file(path, data, executable=bool(member.mode & 0o100))
    if touched.count(_RIGHT) != 1:
        raise InfraFailed(f"{_TOUCHED} is not what it was")
    yield _commit(2, "Simplify the filter that exclude returns", _RELEASED + _DAY_S)
    yield _file(_TOUCHED, touched.replace(_RIGHT, _WRONG), executable=False)


def _commit(mark: int, message: str, at_s: int) -> bytes:
    who = f"{_AUTHOR} {at_s} +0000"
    return f"commit refs/heads/main\nmark :{mark}\nauthor {who}\ncommitter {who}\n".encode() + _data(message.encode())


def _file(path: str, data: bytes, *, executable: bool) -> bytes:
    return f"M {'100755' if executable else '100644'} inline {path}\n".encode() + _data(data)


def _data(data: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(data), data)


def _git(*words: str, data: bytes = b"") -> str:
    ours = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C.UTF-8"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *words], input=data, env={**inherited, **ours}, capture_output=True, timeout=_GIT_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise SubstrateUnavailable("git is not installed", hint="Debian: apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise InfraFailed(f"git {words[-1]} was not done after {_GIT_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise InfraFailed(f"git failed: {done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
    return done.stdout.decode()
