"""SWE-ReX's `upload`: a file, or a zip file that is unpacked in the sandbox. Zip files are hostile input."""

from __future__ import annotations

import os
import posixpath
import stat
import zipfile
from pathlib import Path
from typing import IO, Any, Final

from dutyfree.client.box import Box
from dutyfree.errors import FileFailed
from dutyfree.server.swerex.failures import Failure, of_dutyfree
from dutyfree.server.swerex.settings import Settings
from dutyfree.threads import in_thread

_PIECE_BYTES: Final = 1024**2


async def upload(box: Box, received: Path, path: str, *, unzip: bool, settings: Settings) -> dict[str, Any]:
    """Put the received file at `path`, or what it holds as a zip file below that."""
    try:
        if unzip:
            content = received.with_name("content")
            await in_thread(_unpack, received, content, settings)
        else:
            content = received
            content.chmod(0o644)
        await box.files.upload(content, posixpath.join(settings.workdir, path))
    except FileFailed as error:
        raise of_dutyfree(error, path) from None
    except zipfile.BadZipFile as error:
        raise Failure("zipfile.BadZipFile", str(error)) from None
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise Failure.of(error) from None
    return {}


def _unpack(received: Path, local: Path, settings: Settings) -> None:
    """Unpack a zip file below `local`, as `ZipFile.extractall` does: files and directories with the usual modes."""
    local.mkdir(mode=0o755)
    left_bytes = settings.max_upload_bytes
    with zipfile.ZipFile(received) as archive:
        entries = archive.infolist()
        if len(entries) > settings.max_upload_files:
            raise ValueError(f"the zip file has {len(entries)} entries; at most {settings.max_upload_files} are taken")
        for entry in entries:
            target = local.joinpath(*_parts(entry.filename))
            try:
                if entry.is_dir():
                    target.mkdir(mode=0o755, parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("wb") as sink:
                    left_bytes -= _pour(source, sink, left_bytes)
            except OSError as error:
                raise ValueError(
                    f"the zip entry {entry.filename!r:.200} cannot be unpacked: {error.strerror}"
                ) from None
    _open_modes(local)


def _pour(source: IO[bytes], sink: IO[bytes], most_bytes: int) -> int:
    """Copy, and return how much it was. What the zip file says about sizes is not believed."""
    copied = 0
    while piece := source.read(_PIECE_BYTES):
        copied += len(piece)
        if copied > most_bytes:
            raise ValueError("the zip file holds more than an upload may have")
        sink.write(piece)
    return copied


def _parts(name: str) -> list[str]:
    """The components of an entry's name, without those that would lead out of the directory."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    if any("\0" in part for part in parts) or (not parts and not name.endswith("/")):
        raise ValueError(f"the zip entry {name!r:.200} has no valid name")
    return parts


def _open_modes(local: Path) -> None:
    """Modes that do not depend on this process's umask."""
    for directory, _, files in os.walk(local):
        Path(directory).chmod(0o755)
        for name in files:
            path = Path(directory) / name
            if stat.S_ISREG(path.lstat().st_mode):
                path.chmod(0o644)
