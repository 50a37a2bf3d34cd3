"""Durations, sizes and counts on the command line: one way to write each, in every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dutyfree.cli.main import build_parser, main
from dutyfree.cli.quantities import named, or_none, percent, positive, seconds, size_bytes, whole


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        *(("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("250ms", 0.25), ("0", 0), (".5", 0.5), ("5.", 5)),
        *(("7d", 604800), ("2W", 1209600), ("0.001S", 0.001)),
    ],
)
def test_durations(text: str, expected_s: float) -> None:
    assert seconds(text) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        *(("0", 0), ("1024", 1024), ("7b", 7), ("512k", 2**19), ("512m", 2**29), ("10GB", 10 * 2**30)),
        *(("1GiB", 2**30), ("1.5g", 3 * 2**29), ("2T", 2**41)),
    ],
)
def test_sizes(text: str, expected_bytes: int) -> None:
    assert size_bytes(text) == expected_bytes


@pytest.mark.parametrize(
    ("read", "message", "texts"),
    [
        (seconds, "is not a duration; write seconds, or", ["", "s", "-1", "1 h", "1y", "inf", "nan", "1e3", "9" * 400]),
        (size_bytes, "is not a size; write bytes, or", ["", "g", "-1", "1x", "1ib", "inf", "1mm", "٣", "9" * 400]),
        (whole, "is not a whole number", ["", "1.5", "many", "inf", "nan"]),
        (positive, "is not a", ["0", "-1", "0.5"]),
        (percent, "is not a percentage", ["", "-1", "inf", "nan"]),
        (or_none(size_bytes), "is not a size", ["None", "no"]),
        (named(seconds, "a=1"), "is not NAME=VALUE, such as a=1", ["", "1", "=1"]),
        (named(seconds, "a=1"), "is not a duration", ["a=", "a=b", "a=1=x"]),
    ],
)
def test_anything_else_is_refused_with_the_way_to_write_it(
    read: Callable[[str], object], message: str, texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            read(text)


def test_counts_shares_and_names() -> None:
    assert [whole(each) for each in ("150", "1e6", "-3")] == [150, 1_000_000, -3]
    assert [percent(each) for each in ("5", "7.5%", "0")] == pytest.approx([0.05, 0.075, 0])
    assert or_none(size_bytes)("none") is None
    assert named(seconds, "")("a=b=1.5m") == ("a=b", 90)


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from ((f"{name} {path}".rstrip(), each) for path, each in options_of(inner))
        elif action.option_strings:
            yield "", action


def read_by(action: argparse.Action, text: str) -> Any:
    return action.type(text) if callable(action.type) else None


TIMES = [(path, each) for path, each in options_of(build_parser()) if each.metavar in ("TIME", "NAME=TIME")]
SIZES = [(path, each) for path, each in options_of(build_parser()) if each.metavar in ("SIZE", "ARM=SIZE")]


def test_every_option_for_a_duration_or_a_size_is_read_the_same_way() -> None:
    assert {f"{path} {each.option_strings[0]}" for path, each in TIMES} == {
        *(
            "doctor --timeout",
            "serve --drain",
            "run --timeout",
            "forward --wait",
            "bench --time-limit",
            "bench --trial-timeout",
            "image prune --older-than",
        ),
        *("project --latency", "advise --work-s", "top --every"),
    }
    assert {f"{path} {each.option_strings[0]}" for path, each in SIZES} == {
        *("run --memory", "run --disk", "shell --memory", "shell --disk", "forward --memory", "forward --disk"),
        *("image prune --keep", "advise --memory"),
    }
    for _, each in TIMES:
        prefix, expected = ("a=", ("a", 90)) if str(each.metavar).startswith("NAME=") else ("", 90)
        assert [read_by(each, prefix + text) for text in ("90", "90s", "1.5m")] == [expected] * 3
    for _, each in SIZES:
        prefix, expected_size = ("a=", ("a", 2**30)) if str(each.metavar).startswith("ARM=") else ("", 2**30)
        assert [read_by(each, prefix + text) for text in ("1g", "1GiB", "1024m")] == [expected_size] * 3
    others = {each.metavar for _, each in options_of(build_parser())} & {"S", "SECONDS", "BYTES", "NAME=SECONDS"}
    assert not others


def test_the_error_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--timeout", "soon", "--", "true"])
    assert "argument --timeout: 'soon' is not a duration; write seconds, or with a unit" in capsys.readouterr().err
