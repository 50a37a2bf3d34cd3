"""Metadata of files in overlay layers: whiteouts (deletions), opaque marks, extended attributes."""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import Final

from dutyfree.errors import ArchiveRefused, InvalidRequest, SubstrateFailed
from dutyfree.formatting import quoted
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees.descent import grant

CAPABILITY: Final = "security.capability"
OPAQUE: Final = b"y"
DEVICES: Final = b"dev"
"""The directory of device nodes in an image's root."""
_OVERLAY: Final = ("user.overlay.", "trusted.overlay.")
# These attributes say that the content is in another layer, so the layer is incomplete. Our mounts never make them.
_PARTIAL: Final = ("redirect", "metacopy")
_CAPABILITY_V2: Final = struct.Struct("<I16s")
_CAPABILITY_V3: Final = struct.Struct("<I16sI")
_VERSION_MASK: Final = 0xFF00_0000
_VERSION_2: Final = 0x0200_0000
_VERSION_3: Final = 0x0300_0000


def is_whiteout(info: os.stat_result) -> bool:
    """Whether the file is a whiteout: it marks its name as deleted."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def belongs_in_layer(path: bytes, info: os.stat_result) -> bool:
    """Whether a layer keeps this file. Sockets are skipped, and device nodes below /dev, which each sandbox has.

    Raises InvalidRequest for a device node elsewhere: a sandbox must not reach a driver through it.
    """
    if stat.S_ISSOCK(info.st_mode):
        return False
    if is_whiteout(info) or not (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)):
        return True
    if not path.startswith(DEVICES + b"/"):
        hint = "sandboxes have their own /dev; remove the node"
        raise InvalidRequest(f"{quoted(path)} is a device node, which a layer may not contain", hint=hint)
    return False


def make_whiteout(name: bytes, parent_fd: int, ownership: Ownership) -> None:
    """Make a whiteout for `name`. Ordinary users may do that, too. Raises OSError."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=parent_fd)
    # If no lower layer has the directory, the kernel lists its whiteouts as files that cannot be opened, unless the
    # directory has the mark of a copied-up directory.
    os.setxattr(parent_fd, _own_prefix(ownership) + "origin", b"")


def is_opaque(directory_fd: int, ownership: Ownership) -> bool:
    """Whether a directory is opaque: it hides the same directory of lower layers."""
    try:
        return os.getxattr(directory_fd, ownership.opaque_xattr) == OPAQUE
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise


def make_opaque(directory_fd: int, ownership: Ownership) -> None:
    """Make a directory opaque. Raises OSError."""
    os.setxattr(directory_fd, ownership.opaque_xattr, OPAQUE)


def kept_xattrs(fd: int, ownership: Ownership) -> dict[str, bytes]:
    """The attributes of an open file that a copy keeps: user attributes and capabilities.

    Attributes that overlay mounts add for themselves are skipped. Raises SubstrateFailed for an incomplete layer.
    """
    restore = grant(fd, os.fstat(fd), stat.S_IRUSR)
    try:
        return {name: os.getxattr(fd, name) for name in sorted(os.listxattr(fd)) if _is_kept(name, ownership)}
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return {}
        raise
    finally:
        if restore is not None:
            os.fchmod(fd, restore)


def _is_kept(name: str, ownership: Ownership) -> bool:
    if name.startswith(_OVERLAY):
        own_prefix = _own_prefix(ownership)
        if name.startswith(own_prefix) and name.removeprefix(own_prefix) in _PARTIAL:
            raise SubstrateFailed(f"a layer with the attribute {name} is incomplete: its content is in another layer")
        return False
    return name.startswith("user.") or (name == CAPABILITY and ownership.shift is not None)


def stored_capability(value: bytes, ownership: Ownership) -> bytes:
    """A file's capabilities as stored on disk: valid only in user namespaces whose root is the host id `shift`.

    Raises ArchiveRefused for an invalid value.
    """
    flags, sets, root = _parsed(value)
    return _CAPABILITY_V3.pack(_VERSION_3 | flags, sets, ownership.stored(root))


def shown_capability(value: bytes, ownership: Ownership) -> bytes:
    """The inverse of `stored_capability`. Raises ArchiveRefused."""
    flags, sets, root = _parsed(value)
    shown = ownership.shown(root)
    if shown == 0:
        return _CAPABILITY_V2.pack(_VERSION_2 | flags, sets)
    return _CAPABILITY_V3.pack(_VERSION_3 | flags, sets, shown)


def _own_prefix(ownership: Ownership) -> str:
    return ownership.opaque_xattr.removesuffix("opaque")


def _parsed(value: bytes) -> tuple[int, bytes, int]:
    root = 0
    if len(value) == _CAPABILITY_V2.size:
        flags, sets = _CAPABILITY_V2.unpack(value)
        version = _VERSION_2
    elif len(value) == _CAPABILITY_V3.size:
        flags, sets, root = _CAPABILITY_V3.unpack(value)
        version = _VERSION_3
    else:
        raise ArchiveRefused(f"Linux has no file capabilities of {len(value)} bytes")
    if flags & _VERSION_MASK != version:
        raise ArchiveRefused("Linux does not have this version of file capabilities")
    return flags & ~_VERSION_MASK, sets, root
