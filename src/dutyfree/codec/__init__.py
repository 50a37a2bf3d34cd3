"""The JSON forms of results, errors and requests, for the command line, servers and files (docs/reference/json.md).

Each form is a `Codec`: `OBSERVATION.encode(seen)` gives values that `dumps` writes, `OBSERVATION.decode(loads(text))`
reads them, with types and bounds checked. The form of a pool's status is in `dutyfree.pool.status_codec`.
"""

from dutyfree.codec.bill import BILL
from dutyfree.codec.document import MAX_DOCUMENT_BYTES, VERSION, Codec, dumps, loads
from dutyfree.codec.error import ERROR
from dutyfree.codec.observation import OBSERVATION, SPAN
from dutyfree.codec.request import ACTION, IMAGE, RESOURCES, SPEC, UNENFORCED

__all__ = [
    "ACTION",
    "BILL",
    "ERROR",
    "IMAGE",
    "MAX_DOCUMENT_BYTES",
    "OBSERVATION",
    "RESOURCES",
    "SPAN",
    "SPEC",
    "UNENFORCED",
    "VERSION",
    "Codec",
    "dumps",
    "loads",
]
