"""Which commands are run without a look from `bash -n`."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.server.swerex.syntax import is_plain

WORDS = [
    "true",
    "ls",
    "-la",
    "/tmp/a.b",
    "a=1",
    "'x y'",
    '"x y"',
    "if",
    "done",
    "time",
    "in",
    "''",
    "ifx",
    "x'if'",
    "function",
]
PARTS = st.lists(
    st.sampled_from([*WORDS, " ", "  ", "&&", "||", ";", "|", "&", "(", "'", '"', "\n", "$x", "#"]), max_size=12
)


def bash_takes(command: str) -> bool:
    return (
        subprocess.run(["bash", "-n"], input=f"{command}\n".encode(), capture_output=True, check=False).returncode == 0
    )


@settings(max_examples=300, deadline=None)
@given(PARTS)
def test_what_is_plain_is_valid(parts: list[str]) -> None:
    command = "".join(parts)
    if is_plain(command):
        assert bash_takes(command)


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "ls -la /tmp",
        "cd /repo && git diff",
        "echo 'a; (b'",
        'grep "a b" f | head -5',
        "a=1; b=2",
        "iffy || done2",
    ],
)
def test_usual_commands_are_plain(command: str) -> None:
    assert is_plain(command)
    assert bash_takes(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "(a",
        "a='",
        "for",
        "if true",
        "true &&",
        "true ;",
        "a\nb",
        "a;;b",
        "echo $(",
        "ls | while",
        "a & & b",
        "x" * 3000,
    ],
)
def test_others_are_shown_to_bash(command: str) -> None:
    assert not is_plain(command)


def test_no_command_takes_long() -> None:
    """A regular expression that backtracks would take hours for one of these."""
    for hostile in ("a" * 1999 + "(", "a " * 999 + "(", "'a'" * 600 + "'", "a && " * 399 + "("):
        assert not is_plain(hostile)
