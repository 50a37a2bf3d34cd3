"""Ids of snapshots: each holds its image, so that any gateway can start sandboxes from it. Pure."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Final

from dutyfree.codec.document import dumps, loads
from dutyfree.codec.request import IMAGE
from dutyfree.errors import DutyfreeError, InvalidRequest
from dutyfree.model import Image

_PREFIX: Final = "snapshot-"
_MAX_CHARACTERS: Final = 4096
_MAX_BYTES: Final = 64 * 1024


def snapshot_id(image: Image) -> str:
    """The id of the snapshot that was saved as this image."""
    return _PREFIX + base64.urlsafe_b64encode(zlib.compress(dumps(IMAGE.encode(image)).encode())).rstrip(b"=").decode()


def read_snapshot_id(text: str) -> Image | None:
    """The image of a snapshot; None for a name that is no id of one. Raises InvalidRequest for a broken id.

    Layers are named by their content: who does not know a layer cannot name it.
    """
    if not text.startswith(_PREFIX):
        return None
    data = text.removeprefix(_PREFIX)
    try:
        if len(data) > _MAX_CHARACTERS:
            raise ValueError
        packed = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(packed, _MAX_BYTES)
        if not unpacker.eof:
            raise ValueError
        return IMAGE.decode(loads(found.decode()))
    except (ValueError, binascii.Error, zlib.error, DutyfreeError):
        raise InvalidRequest("this id of a snapshot is broken") from None
