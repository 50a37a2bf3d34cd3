"""What errors become on the wire, so that E2B's clients raise the exception that fits."""

from __future__ import annotations

import errno
import math
from typing import Final

from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    FileFailed,
    ImageNotFound,
    InfraFailed,
    InvalidRequest,
    LeaseLost,
    PortFailed,
    SandboxGone,
    SandboxPaused,
    SubstrateUnavailable,
    Unsupported,
)
from dutyfree.server.access import Unauthorized
from dutyfree.server.e2b.connect import JsonObject


class HttpError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    @property
    def body(self) -> JsonObject:
        """The JSON of the control plane and of the daemon."""
        return {"code": self.status, "message": self.message}


class RpcError(Exception):
    """The end of a call with one of Connect's codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def body(self) -> JsonObject:
        """The JSON of a Connect error."""
        return {"code": self.code, "message": self.message}


STATUS: Final = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
"""The HTTP status of each of Connect's codes, for calls without a stream."""

_FILES: Final = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "already_exists",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ENOSPC: "resource_exhausted",
    errno.EDQUOT: "resource_exhausted",
    errno.EFBIG: "resource_exhausted",
    errno.ETIMEDOUT: "deadline_exceeded",
}


def not_implemented(what: str) -> HttpError:
    """501 with a sentence."""
    return HttpError(501, what)


def sandbox_not_found(sandbox_id: str, why: str = "") -> HttpError:
    """The answer for a sandbox that is not there, or not the caller's: clients look for these words."""
    return HttpError(404, f"sandbox {sandbox_id[:80]!r} was not found{why}")


def daemon_gone(sandbox_id: str, why: str = "") -> HttpError:
    """The answer of E2B's proxy for a sandbox that does not run: clients look for these words."""
    return HttpError(502, f"The sandbox {sandbox_id[:80]} was not found{why}")


def to_http(error: DutyfreeError) -> HttpError:
    """The answer of the control plane."""
    if isinstance(error, CapacityError):
        return busy(error)
    if isinstance(error, Unauthorized):
        return HttpError(401, str(error))
    if isinstance(error, LeaseLost | SandboxGone | ImageNotFound):
        return HttpError(404, str(error))
    if isinstance(error, SandboxPaused):
        return HttpError(409, str(error))
    if isinstance(error, Unsupported):
        return HttpError(501, str(error))
    if isinstance(error, FileFailed):
        code = _FILES.get(error.errno, "invalid_argument")
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return HttpError(507 if is_full else 400 if code == "already_exists" else STATUS[code], str(error))
    if isinstance(error, InvalidRequest | PortFailed):
        return HttpError(400, str(error))
    if isinstance(error, DeadlineExceeded):
        return HttpError(504, str(error), headers=((b"should-retry", b"false"),))
    if isinstance(error, InfraFailed) and not isinstance(error, SubstrateUnavailable):
        return HttpError(503, str(error), headers=((b"retry-after", b"1"), (b"should-retry", b"true")))
    return HttpError(500, str(error))


def busy(error: CapacityError) -> HttpError:
    """429, with the time after which to try again."""
    after_s = max(1, math.ceil(error.retry_after_s or 1.0))
    headers = ((b"retry-after", str(after_s).encode()), (b"should-retry", b"true"))
    return HttpError(429, str(error), headers=headers)


def to_rpc(error: DutyfreeError) -> RpcError:
    """The answer of a call to the daemon. LeaseLost and SandboxPaused have one of their own: `daemon_gone`."""
    if isinstance(error, CapacityError):
        return RpcError("resource_exhausted", str(error))
    if isinstance(error, FileFailed):
        return RpcError(_FILES.get(error.errno, "invalid_argument"), str(error))
    if isinstance(error, Unsupported):
        return RpcError("unimplemented", str(error))
    if isinstance(error, LeaseLost | SandboxGone | SandboxPaused):
        return RpcError("unavailable", f"the sandbox was not found: {error}")
    if isinstance(error, InvalidRequest):
        return RpcError("invalid_argument", str(error))
    if isinstance(error, DeadlineExceeded):
        return RpcError("deadline_exceeded", str(error))
    if isinstance(error, InfraFailed):
        return RpcError("unavailable", f"the infrastructure failed: {error}")
    return RpcError("internal", str(error))
