"""The files of a sandbox, and watching them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from dutyfree.checked import FilePath
from dutyfree.errors import Unsupported
from dutyfree.model import FileEvent, FileInfo, User

DEFAULT_READ_LIMIT_BYTES = 64 * 1024**2
DEFAULT_DOWNLOAD_LIMIT_BYTES = 64 * 1024**3
DEFAULT_FILE_TIMEOUT_S = 120.0
DEFAULT_TRANSFER_TIMEOUT_S = 3600.0


class Watch(ABC):
    """A directory that is watched for the length of an `async with` block: an async iterator of its changes.

    Once the block is entered, every later change is seen, or an event of the kind `overflow` says that some were not:
    a reader that is too slow, or a tree with more directories than are watched, loses events, never in silence.
    """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[FileEvent]:
        """The changes as they come. Raises FileFailed with ENOENT once the directory itself was removed or moved."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Files(ABC):
    """Files of a sandbox, by absolute path. All paths are resolved inside the sandbox, symlinks included.

    A path is a str or a `pathlib` object; data is bytes, or a str, which becomes UTF-8. A host gives substrates text
    and bytes alone, and raises InvalidRequest for values of other types.

    Every method raises FileFailed (with `errno`) for what the sandbox's kernel refused, and otherwise as
    `Sandbox.run` does. Past `timeout_s` it raises FileFailed with ETIMEDOUT, and what was under way in the sandbox is
    killed: code in there can stop a file operation for as long as it likes. The sandbox can be used as before.
    """

    def as_user(self, user: User) -> Files:
        """The same files, with the rights of a user of the sandbox, who owns what is made through them.

        Raises InvalidRequest, and Unsupported without `Capability.USERS`. A user that is not there is InvalidRequest,
        too, raised by each operation.
        """
        raise Unsupported("the files of this substrate know no users")

    @abstractmethod
    async def read(
        self, path: FilePath, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        """The whole content. Raises FileFailed with EFBIG past `limit_bytes`: use `download` for big files."""

    @abstractmethod
    async def write(
        self, path: FilePath, data: bytes | str, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        """Replace the file in one step: a reader sees the old content or the new. Missing directories are made."""

    @abstractmethod
    async def append(self, path: FilePath, data: bytes | str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        """Add to the end of the file; creates it."""

    @abstractmethod
    async def list(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        """The entries of a directory, sorted by name."""

    @abstractmethod
    async def stat(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        """What is at `path`; a final symlink is not followed."""

    @abstractmethod
    async def mkdir(
        self, path: FilePath, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        """Make a directory; with `parents`, one that is there already is fine."""

    @abstractmethod
    async def move(self, source: FilePath, target: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        """Rename, replacing the target."""

    @abstractmethod
    async def remove(
        self, path: FilePath, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        """Remove a file or an empty directory, or a whole tree; symlinks are removed, never followed."""

    @abstractmethod
    async def upload(self, local: FilePath, path: FilePath, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S) -> None:
        """Stream a local file, or a local directory's tree, into the sandbox. There is no limit on its size."""

    @abstractmethod
    async def download(
        self,
        path: FilePath,
        local: FilePath,
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        """Stream a file, or a directory's tree, out of the sandbox.

        The sandbox cannot write outside `local`: entries that would (absolute names, `..`, links
        that leave the tree, device nodes) raise GuestMisbehaved or are refused as FileFailed, and nothing past
        `limit_bytes` is taken.
        """

    def watch(self, path: FilePath, *, recursive: bool = False) -> Watch:
        """Watch a directory; with `recursive`, the tree below it, too. Symlinks in it are not followed.

        Entering the block raises FileFailed (ENOENT, ENOTDIR ...) where there is no directory. A watch is an action
        without a timeout. Raises Unsupported without `Capability.WATCH`.
        """
        raise Unsupported("this substrate cannot watch files")
