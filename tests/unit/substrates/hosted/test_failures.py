"""What the SDK raises, and what we raise for it."""

from __future__ import annotations

import httpx
import pytest
from e2b import exceptions as e2b
from e2b.api import handle_api_exception

from dutyfree import errors
from dutyfree.substrates.hosted.failures import failure


class Answer:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers, self.content = status, httpx.Headers(headers), b'{"message": "full"}'


def refused(status: int, **headers: str) -> BaseException:
    """The SDK's error for an answer, raised as the SDK raises it: where `res` is the answer."""
    res = Answer(status, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        raise handle_api_exception(res)
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (e2b.AuthenticationException("401"), errors.Unauthenticated),
        (e2b.SandboxNotFoundException("404"), errors.SandboxGone),
        (e2b.SandboxNotRunningException("502"), errors.SandboxGone),
        (e2b.SandboxUnreachableException("?"), errors.LinkFailed),
        (e2b.TimeoutException("late"), errors.DeadlineExceeded),
        (e2b.InvalidArgumentException("no"), errors.InvalidRequest),
        (httpx.ConnectError("refused"), errors.LinkFailed),
        (httpx.ReadTimeout("late"), errors.DeadlineExceeded),
        (ConnectionResetError(), errors.LinkFailed),
        (refused(400), errors.InvalidRequest),
        (refused(401), errors.Unauthenticated),
        (refused(500), errors.SubstrateFailed),
        (refused(501), errors.Unsupported),
        (refused(503), errors.CapacityError),
        (ValueError("odd"), errors.SubstrateFailed),
    ],
)
def test_kinds(raised: BaseException, kind: type[errors.DutyfreeError]) -> None:
    assert type(failure("do it", raised)) is kind


def test_a_full_service_says_when_to_come_again() -> None:
    found = failure("create", refused(429, retry_after="7"))
    assert isinstance(found, errors.CapacityError)
    assert found.retry_after_s == 7.0


@pytest.mark.parametrize("word", ["", "soon", "-1", "1e9", "99999999999999"])
def test_an_odd_time_is_none(word: str) -> None:
    found = failure("create", refused(429, retry_after=word))
    assert isinstance(found, errors.CapacityError)
    assert found.retry_after_s is None


def test_control_characters_are_not_quoted() -> None:
    assert "\x1b" not in failure("do it", e2b.SandboxException("\x1b[31mred")).message
