"""What is checked before a service is called, and the SDK, which is an extra."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from dutyfree.errors import InvalidRequest, SubstrateUnavailable
from dutyfree.model import Isolation
from dutyfree.substrates.hosted import HostedSubstrate


def test_the_sdk_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, dutyfree.substrates.hosted as h; h.HostedSubstrate(); print('e2b' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


async def test_without_the_sdk_the_hint_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "e2b", None)
    with pytest.raises(SubstrateUnavailable) as caught:
        await HostedSubstrate(api_key="x").open()
    assert caught.value.hint is not None
    assert "dutyfree[hosted]" in caught.value.hint


async def test_without_a_key_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(SubstrateUnavailable, match="no key"):
        await HostedSubstrate(api_url="http://127.0.0.1:1").open()


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "ssh"},
        {"timeout_s": 1},
        {"timeout_s": 10**6},
        {"request_timeout_s": 0},
        {"stdin": "pipe"},
        {"isolation": "steel"},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        HostedSubstrate(**wrong)


def test_no_wall_is_claimed_unless_the_user_knows_one() -> None:
    assert HostedSubstrate().isolation is Isolation.NONE
    assert HostedSubstrate(isolation="microvm").isolation is Isolation.MICROVM


def test_the_key_is_in_no_repr() -> None:
    from dutyfree.substrates.hosted.service import Service

    assert "s3cret" not in repr(Service(None, 60, {"api_key": "s3cret"}))
