"""The line that bash gets, run by a real bash, and what is read from the end of its standard error."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from dutyfree.model import Action
from dutyfree.substrates.hosted.exec_line import Note, Trailer, wrap

TOKEN = "0123456789abcdef01234567"


def ran(action: Action) -> tuple[bytes, str, Note | None]:
    done = subprocess.run(["/bin/bash", "-c", wrap(action, TOKEN)], capture_output=True, input=action.stdin, timeout=20)
    trailer = Trailer(TOKEN)
    own = trailer.feed(done.stderr.decode())
    rest, note = trailer.finish()
    return done.stdout, own + rest, note


def test_the_note_has_the_code_and_the_time() -> None:
    out, err, note = ran(Action("echo out; echo err >&2; sleep 0.1; exit 3"))
    assert (out, err) == (b"out\n", "err\n")
    assert note is not None
    assert note.exit_code == 3
    assert note.execute_ns is not None
    assert 1e8 <= note.execute_ns < 5e9


def test_an_argv_is_not_interpreted_and_no_builtin() -> None:
    out, _, note = ran(Action(["printf", "[%s]", "a b", "$HOME", "*", "'", "", "-n"]))
    assert out == b"[a b][$HOME][*]['][][-n]"
    assert note is not None
    assert note.exit_code == 0
    note = ran(Action(["conformance-nowhere"]))[2]
    assert note is not None
    assert note.exit_code == 127


def test_input_and_merge() -> None:
    assert ran(Action(["cat"], stdin=b"x"))[0] == b"x"
    assert ran(Action(["cat"]))[0] == b""
    assert ran(Action("echo a; echo b >&2; echo c", merge=True))[:2] == (b"a\nb\nc\n", "")


def test_a_command_cannot_write_a_note_whose_token_it_does_not_know() -> None:
    own = "\x1effffffffffffffffffffffff 1 2 0\x1e"
    trailer = Trailer(TOKEN)
    assert trailer.feed(own) + trailer.finish()[0] == own


@given(
    st.text(st.sampled_from("a\x1e0123456789 \n"), max_size=60),
    st.integers(0, 255),
    st.booleans(),
    st.lists(st.integers(1, 7), max_size=80),
)
def test_any_cut_gives_the_same(own: str, code: int, has_note: bool, cuts: list[int]) -> None:
    note = f"\x1e{TOKEN} 1700000000.000001 1700000000.000003 {code}\x1e" if has_note else ""
    text, trailer, seen = own + note, Trailer(TOKEN), ""
    for cut in cuts:
        seen += trailer.feed(text[:cut])
        text = text[cut:]
    seen += trailer.feed(text)
    rest, found = trailer.finish()
    assert seen + rest == own
    assert found == (Note(code, 2000) if has_note else None)
