"""The binding of a lease: the environment, secrets, files and identity that its sandbox gets when it is leased.

Where a secret is, and where it is not:

* A secret of the environment is added to each action when the action is sent into the sandbox. It is only in the memory
  of the host's process and of the processes that the action starts. Dutyfree writes it to no file.
* A secret file is written only below `/dev/shm`, which is memory. By the contract, snapshots and forks do not copy it.
  If snapshots of a substrate contain the whole memory of a machine, a lease with secrets cannot take snapshots.
  (The kernel may swap memory out: encrypt or disable swap if a secret must never be on a disk.)
* A binding, an action or an environment does not show its secrets when it is printed, logged, pickled or part of a
  traceback. Error reports that show the local variables of Dutyfree's frames do not show them either; those of the
  caller's frames may, because the caller has the secret as plain text.
* Dutyfree does not control what a command does with a secret. The command may write it to its disk, for example in a
  core dump, and a snapshot then contains it. When the lease ends, the sandbox is reset or destroyed with all its files.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from dutyfree.contract import Files, Sandbox
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.leases.secret import Secret
from dutyfree.model import Capability, Egress, User
from dutyfree.model.environment import CheckedEnvironment, check_env
from dutyfree.model.user import check_user
from dutyfree.values import dataclass
from dutyfree.wire.fields import encode_text

MEMORY_DIRECTORY: Final = "/dev/shm"
MAX_ENTRIES: Final = 256
"""The most entries of the environment, secrets included."""
MAX_ENVIRONMENT_BYTES: Final = 128 * 1024
MAX_FILES: Final = 64
MAX_FILES_BYTES: Final = 16 * 1024**2
MAX_PATH_CHARACTERS: Final = 4096
_RESERVED: Final = "DUTYFREE_"
_LEASE_NAME: Final = f"{_RESERVED}LEASE"
_OWNER_NAME: Final = f"{_RESERVED}OWNER"
_AT_ONCE: Final = 8


class MaskedEnvironment(dict[str, str]):
    """An environment that can be printed: the values of `secret` names do not show."""

    __slots__ = ("_secret",)

    def __init__(self, entries: Mapping[str, str], secret: Iterable[str]) -> None:
        super().__init__(entries)
        self._secret = frozenset(secret)

    @property
    def secret(self) -> frozenset[str]:
        """The names whose values do not show."""
        return self._secret

    def under(self, own: Mapping[str, str]) -> MaskedEnvironment:
        """A copy in which the entries of `own` replace those of the same name."""
        merged = MaskedEnvironment(self, self._secret)
        merged.update(own)
        return merged

    def __repr__(self) -> str:
        return repr({name: "***" if name in self._secret else value for name, value in self.items()})

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an environment with secrets cannot be pickled")


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What belongs to one lease alone. Earlier and later tenants of the sandbox never see it.

    Raises InvalidRequest for invalid names and paths, and above the limits of this module.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret | str] = field(default_factory=dict)
    """Further entries of the environment, which are never printed or logged."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Content by absolute path, readable by all users in the sandbox. Snapshots and forks contain them."""
    secret_files: Mapping[str, Secret | str | bytes] = field(default_factory=dict)
    """Content by absolute path below `/dev/shm`, readable only by `user`. Snapshots do not contain them."""
    uploads: Mapping[str, str | PathLike[str]] = field(default_factory=dict)
    """Local files and directories by absolute path, streamed in as root. Snapshots and forks contain them."""
    workdir: str | None = None
    """Where the tenant's actions run unless they name another directory; None for the image's."""
    user: User | None = None
    """The user that the tenant's calls act as, unless they name another; None for root."""
    egress: Egress | None = None
    """What its programs may reach, by name."""

    def __post_init__(self) -> None:
        secrets = {name: Secret(value) for name, value in self.secrets.items()}
        secret_files = {path: Secret(content) for path, content in self.secret_files.items()}
        # A relative path means the same after a reset, whatever the working directory of this process is by then.
        uploads = {path: Path(os.path.abspath(local)) for path, local in self.uploads.items()}  # noqa: PTH100
        _freeze(self, env=self.env, secrets=secrets, files=self.files, secret_files=secret_files, uploads=uploads)
        _check_environment(self.env, secrets)
        _check_files(self.files, secret_files)
        _check_uploads(uploads, self.files)
        if self.workdir is not None and (not posixpath.isabs(self.workdir) or "\0" in self.workdir):
            raise InvalidRequest(f"workdir {self.workdir!r} is not an absolute path")
        if self.user is not None:
            check_user(self.user)
        if self.egress is not None:
            from dutyfree.egress.rules import Rules  # most leases have no egress

            Rules(self.egress)

    @property
    def is_secret(self) -> bool:
        """Whether it has secrets or secret files."""
        return bool(self.secrets or self.secret_files)

    def check(self, capabilities: frozenset[Capability]) -> None:
        """Raise Unsupported if sandboxes with these capabilities cannot take the files, or have no users."""
        if self.user is not None and Capability.USERS not in capabilities:
            hint = "cells made by root, containers and microVMs have users; without user=, actions run as root"
            raise Unsupported(f"sandboxes of this substrate cannot run actions as user {self.user!r}", hint=hint)
        if (self.files or self.secret_files or self.uploads) and Capability.FILES not in capabilities:
            raise Unsupported("sandboxes of this substrate take no files")
        if self.secret_files and Capability.PRIVATE_FILES not in capabilities:
            hint = "pass the secret in the environment, or use a substrate whose sandboxes do not share files"
            raise Unsupported("other sandboxes of this substrate could read a secret file", hint=hint)
        if self.egress is not None and Capability.EGRESS not in capabilities:
            raise Unsupported("sandboxes of this substrate have no egress by name", hint="use cells")

    def environment(self, lease_id: str, owner: str) -> MaskedEnvironment | CheckedEnvironment:
        """The environment of each action of the lease. An action may replace entries by its own."""
        identity = {_LEASE_NAME: lease_id, _OWNER_NAME: owner}
        env = self.env
        if self.egress is not None:
            from dutyfree.egress.service import ENVIRONMENT

            env = {**{name: value for name, value in ENVIRONMENT.items() if name not in self.secrets}, **env}
        if self.secrets:
            return _masked(env, self.secrets).under(identity)
        return CheckedEnvironment({**env, **identity} if env else identity)

    def changed(self, changes: Mapping[str, str | Secret | None]) -> Binding:
        """The same with these entries of the environment replaced, added or, for None, removed.

        A `Secret`, and any value for a name that is secret already, becomes one of the secrets. Raises as a new binding
        does.
        """
        env, secrets = dict(self.env), dict(self.secrets)
        for name in changes:  # not the values: one may be a secret, and reports of errors show locals
            if type(name) is not str or not isinstance(changes[name], str | Secret | None):
                raise InvalidRequest(f"environment entry {name!r}: names are text; values are text, a Secret or None")
            was_secret = secrets.pop(name, None) is not None
            env.pop(name, None)
            if changes[name] is None:
                _check_reserved(name)
            elif was_secret or isinstance(changes[name], Secret):
                secrets[name] = Secret(changes[name] or "")
            else:
                env[name] = str(changes[name])
        return replace(self, env=env, secrets=secrets)

    def of_forks(self) -> Binding:
        """The binding of a fork. The fork has the files, but not the secret files, which are in memory."""
        return replace(self, files={}, uploads={})


async def bind(sandbox: Sandbox, binding: Binding, capabilities: frozenset[Capability]) -> None:
    """Upload, then write the binding's files, up to `_AT_ONCE` at a time. Without any, nothing is sent to the sandbox.

    The environment is not written: `Box` adds it to each action. Raises as `Binding.check`, `Files.upload` and
    `Files.write` do. Files that were written before the error stay until the sandbox is reset or destroyed.
    """
    binding.check(capabilities)
    for path, local in binding.uploads.items():
        await sandbox.files.upload(local, path)
    places = asyncio.Semaphore(_AT_ONCE)

    private = sandbox.files if binding.user is None else sandbox.files.as_user(binding.user)

    async def write(files: Files, path: str, content: bytes, mode: int) -> None:
        async with places:
            await files.write(path, content, mode=mode)

    writes = [write(sandbox.files, path, content, 0o644) for path, content in binding.files.items()]
    writes += [
        write(private, path, Secret(content).reveal_bytes(), 0o600) for path, content in binding.secret_files.items()
    ]
    outcomes = await asyncio.gather(*writes, return_exceptions=True) if writes else ()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _freeze(binding: Binding, **mappings: Mapping[str, object]) -> None:
    for name, mapping in mappings.items():
        object.__setattr__(binding, name, MappingProxyType(dict(mapping)))


def _masked(env: Mapping[str, str], secrets: Mapping[str, Secret | str]) -> MaskedEnvironment:
    revealed = {name: Secret(secret).reveal() for name, secret in secrets.items()}
    return MaskedEnvironment({**env, **revealed}, secrets)


def _check_environment(env: Mapping[str, str], secrets: Mapping[str, Secret]) -> None:
    both = sorted(env.keys() & secrets.keys())
    if both:
        raise InvalidRequest(f"{', '.join(both)}: in the environment and among the secrets")
    entries = _masked(env, secrets)
    check_env(entries)
    for name in entries:
        _check_reserved(name)
    size_bytes = sum(len(encode_text(f"{name}={entries[name]}")) + 1 for name in entries)
    if len(entries) > MAX_ENTRIES or size_bytes > MAX_ENVIRONMENT_BYTES:
        raise InvalidRequest(
            f"the environment has {len(entries)} entries of {size_bytes} bytes; "
            f"{MAX_ENTRIES} of {MAX_ENVIRONMENT_BYTES} bytes can be bound",
            hint="use files for large values",
        )


def _check_reserved(name: str) -> None:
    if name.startswith(_RESERVED):
        raise InvalidRequest(f"environment entry {name!r}: names with {_RESERVED} are the lease's own")


def _check_path(path: str) -> None:
    if not posixpath.isabs(path) or path != posixpath.normpath(path) or "\0" in path or path == "/":
        raise InvalidRequest(f"{path!r} is not an absolute path in its shortest form")
    if len(path) > MAX_PATH_CHARACTERS:
        raise InvalidRequest(f"a path has {len(path)} characters; the limit is {MAX_PATH_CHARACTERS}")


def _check_uploads(uploads: Mapping[str, Path], files: Mapping[str, bytes]) -> None:
    for path in uploads:
        _check_path(path)
        if path in files:
            raise InvalidRequest(f"{path!r} is among the files and among the uploads")
    if len(uploads) > MAX_FILES:
        raise InvalidRequest(f"{len(uploads)} uploads; {MAX_FILES} can be bound", hint="upload a directory of them")


def _check_files(files: Mapping[str, bytes], secret_files: Mapping[str, Secret]) -> None:
    for path in (*files, *secret_files):
        _check_path(path)
        if path in files and path in secret_files:
            raise InvalidRequest(f"{path!r} is among the files and among the secret files")
    for path in secret_files:
        if not path.startswith(f"{MEMORY_DIRECTORY}/"):
            hint = "files elsewhere would be part of snapshots and forks"
            raise InvalidRequest(f"{path!r}: secret files must be below {MEMORY_DIRECTORY}", hint=hint)
    count = len(files) + len(secret_files)
    size_bytes = sum(map(len, files.values())) + sum(len(each.reveal_bytes()) for each in secret_files.values())
    if count > MAX_FILES or size_bytes > MAX_FILES_BYTES:
        raise InvalidRequest(
            f"{count} files of {size_bytes} bytes; {MAX_FILES} of {MAX_FILES_BYTES} bytes can be bound",
            hint="put files that many leases share into a stage of the recipe; upload the others",
        )


NOTHING: Final = Binding()
"""The empty binding."""
