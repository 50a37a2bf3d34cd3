"""Errors as SWE-ReX's client raises them: the class that it imports, and the message. Pure."""

from __future__ import annotations

import os
import re
from typing import Any, Final, Self

from dutyfree.errors import DutyfreeError, FileFailed, InvalidRequest

_REFUSED_CWD: Final = re.compile(r"the working directory cannot be entered: '(.*): ([^:]*)'", re.DOTALL)
_CWD_ERRORS: Final = {"No such file or directory": 2, "Not a directory": 20, "Permission denied": 13}


class Failure(Exception):
    """An exception that the client is to raise, by the name of its class."""

    def __init__(self, class_path: str, message: str, extra_info: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.class_path = class_path
        self.message = message
        self.extra_info = extra_info or {}

    @classmethod
    def named(cls, name: str, message: str, **extra_info: Any) -> Self:
        """One of `swerex.exceptions`."""
        return cls(f"swerex.exceptions.{name}", message, extra_info)

    @classmethod
    def of(cls, error: Exception) -> Self:
        """A builtin exception."""
        return cls(f"builtins.{type(error).__name__}", str(error))

    def transfer(self) -> dict[str, Any]:
        """The JSON form. The traceback of this server is nobody's business."""
        return {
            "swerexception": {
                "message": self.message,
                "class_path": self.class_path,
                "traceback": "",
                "extra_info": self.extra_info,
            }
        }


def of_dutyfree(error: DutyfreeError, path: str = "") -> Failure:
    """What a failed call of a box is for the client."""
    if isinstance(error, FileFailed):
        return of_errno(error.errno, path) if path else Failure("builtins.OSError", str(error))
    if isinstance(error, InvalidRequest):
        entered = _REFUSED_CWD.search(error.message)
        if entered is not None and entered[2] in _CWD_ERRORS:
            return of_errno(_CWD_ERRORS[entered[2]], entered[1])
        return Failure("builtins.ValueError", str(error))
    return Failure.named("SwerexException", str(error))


def of_errno(errno: int, path: str) -> Failure:
    """The OSError of that number, with the class that Python gives it."""
    return Failure.of(OSError(errno, os.strerror(errno), path))
