"""What the SDK raises, as Dutyfree's errors. Nothing here does I/O."""

from __future__ import annotations

from typing import Any, Final

import httpx
from connectrpc.errors import ConnectError
from e2b import exceptions as e2b

from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    InvalidRequest,
    LinkFailed,
    SandboxGone,
    SubstrateFailed,
    Unauthenticated,
    Unsupported,
)

_QUOTED_CHARACTERS: Final = 400
_MAX_RETRY_AFTER_S: Final = 3600.0
_NETWORK: Final = (httpx.TransportError, OSError, e2b.SandboxUnreachableException)
_GONE: Final = (e2b.NotFoundException, e2b.SandboxNotRunningException)
_STATUS: Final[dict[int, type[DutyfreeError]]] = {
    400: InvalidRequest,
    403: Unauthenticated,
    404: InvalidRequest,
    409: InvalidRequest,
    413: InvalidRequest,
    501: Unsupported,
    502: LinkFailed,
    504: DeadlineExceeded,
}


def failure(what: str, error: BaseException) -> DutyfreeError:
    """The error for a service that did not do `what`; it quotes the service's words, printable characters only."""
    words = f"the service did not {what}: {_quoted(error)}"
    if isinstance(error, e2b.AuthenticationException):
        hint = "give its key: the option api_key, or E2B_API_KEY"
        return Unauthenticated(words, hint=hint)
    if isinstance(error, e2b.RateLimitException | e2b.ServiceBusyException | e2b.NotEnoughSpaceException):
        return CapacityError(words, retry_after_s=_retry_after_s(error))
    if isinstance(error, _GONE):
        return SandboxGone(words)
    if isinstance(error, _NETWORK) and not isinstance(error, httpx.TimeoutException | TimeoutError):
        return LinkFailed(words)
    if isinstance(error, e2b.TimeoutException | httpx.TimeoutException | TimeoutError):
        return DeadlineExceeded(words)
    if isinstance(error, e2b.InvalidArgumentException | e2b.TemplateException):
        return InvalidRequest(words)
    if isinstance(error, ConnectError):  # the SDK leaves those of a broken connection as they are
        return LinkFailed(words)
    return _STATUS.get(getattr(error, "status_code", None) or 0, SubstrateFailed)(words)


def _quoted(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return "".join(each if each.isprintable() else " " for each in text).strip()[:_QUOTED_CHARACTERS]


def _retry_after_s(error: BaseException) -> float | None:
    """What `Retry-After` said. The SDK's exception does not have it; the frame that raised it has the response."""
    trace, response = error.__traceback__, None
    while trace is not None:
        response = trace.tb_frame.f_locals.get("res", response)
        trace = trace.tb_next
    headers: Any = getattr(response, "headers", None) or {}
    text = str(headers.get("retry-after", headers.get("Retry-After", "")))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), _MAX_RETRY_AFTER_S)
