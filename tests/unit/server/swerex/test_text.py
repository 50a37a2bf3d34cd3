"""Text as SWE-ReX gives it, and errors as its client raises them."""

from __future__ import annotations

import pytest

from dutyfree.errors import FileFailed, InvalidRequest, LeaseLost
from dutyfree.server.swerex.failures import Failure, of_dutyfree
from dutyfree.server.swerex.text import file_text, shown


def test_output_has_no_escapes_of_terminals() -> None:
    assert shown(b"\x1b[31mred\x1b[0m\r\nplain\n") == "red\nplain\n"
    assert shown(b"\xff\n") == "\\xff\n"


def test_files_are_decoded_as_python_reads_text() -> None:
    assert file_text(b"a\r\nb\rc", None, None) == "a\nb\nc"
    assert file_text(b"\xe4", "latin-1", None) == "ä"
    assert file_text(b"\xe4", None, "ignore") == ""
    with pytest.raises(UnicodeDecodeError):
        file_text(b"\xe4", None, None)


@pytest.mark.parametrize("encoding", ["nope", "punycode", "idna", "zlib_codec", "../os"])
def test_codecs_that_are_no_text_or_slow_are_unknown(encoding: str) -> None:
    with pytest.raises(LookupError):
        file_text(b"abc", encoding, None)


def test_errors_name_the_class_that_the_client_raises() -> None:
    missing = of_dutyfree(FileFailed.refused("read", "/x", 2), "/x")
    assert (missing.class_path, missing.message) == (
        "builtins.FileNotFoundError",
        "[Errno 2] No such file or directory: '/x'",
    )
    assert of_dutyfree(InvalidRequest("no")).class_path == "builtins.ValueError"
    assert of_dutyfree(LeaseLost("gone")).class_path == "swerex.exceptions.SwerexException"
    cwd = of_dutyfree(InvalidRequest("the working directory cannot be entered: '/a: b: Not a directory'"))
    assert (cwd.class_path, cwd.message) == ("builtins.NotADirectoryError", "[Errno 20] Not a directory: '/a: b'")
    assert Failure.named("NoExitCodeError", "m", a=1).transfer() == {
        "swerexception": {
            "message": "m",
            "class_path": "swerex.exceptions.NoExitCodeError",
            "traceback": "",
            "extra_info": {"a": 1},
        }
    }
