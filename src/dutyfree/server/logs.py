"""Logs of a server: one JSON object a line on standard error. Nothing that is logged has a token or a secret in it."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

LOGGER: Final = logging.getLogger("dutyfree.server")
_OWN: Final = frozenset(vars(logging.makeLogRecord({})))


class JsonLines(logging.Formatter):
    """A record as a line: time, level, which process, message, and what `extra` has."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN and name != "message"}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return json.dumps(fields, default=str)


def log_to_stderr(process: str) -> None:
    """Write the server's logs, and warnings of all else, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(logging.INFO)
