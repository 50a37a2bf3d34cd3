"""Mistakes on the command line: what was meant is suggested, and every help leads on."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dutyfree.cli.main import COMMANDS, build_parser, main
from dutyfree.cli.parser import EXAMPLE


def parsers(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.ArgumentParser]:
    parser = parser if parser is not None else build_parser()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    lines = (parser.epilog or "").splitlines()
    return [line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)]


PARSERS = list(parsers())
EXAMPLES = [example for parser in PARSERS for example in examples(parser)]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines on stderr of a command that must be refused as wrong usage."""
    try:
        code = main(words)
    except SystemExit as left:
        code = int(str(left.code))
    assert code == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    return seen.err.splitlines()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["run", "--memroy", "1g", "--", "true"], "error: there is no option --memroy", "did you mean --memory?"),
        (["run", "--memroy=1g", "--", "true"], "error: there is no option --memroy", "did you mean --memory?"),
        (["rnu", "--", "true"], "error: there is no command 'rnu'", "did you mean run?"),
        (["image", "biuld"], "error: there is no command 'biuld'", "did you mean build?"),
        (["image", "list", "--jsno"], "error: there is no option --jsno", "did you mean --json?"),
        (["compare", "a", "b", "c"], "error: 'c' is one argument too many", "`dutyfree compare --help`"),
        (["run", "--substrate", "gvsor", "true"], "error: there is no substrate 'gvsor'", "did you mean gvisor?"),
        (["run", "--substrate", "auot", "true"], "error: there is no substrate 'auot'", "did you mean auto?"),
        (["doctor", "auto"], "error: there is no substrate 'auto'", "hint: choose one of: cell, docker"),
        (["doctor", "cel"], "error: there is no substrate 'cel'", "did you mean cell?"),
        (["run", "--option", "foo=1", "true"], "error: substrate 'cell' has no option 'foo'", "it has: masks, store, "),
        (["run", "--option", "mask=1", "true"], "error: substrate 'cell' has no option 'mask'", "did you mean masks?"),
        (
            ["run", "--substrate", "process", "--option", "a=1", "true"],
            "error: substrate 'process' has no option 'a'",
            "it has no options",
        ),
        (
            ["run", "--substrate", "auto", "--option", "trst=model", "true"],
            "error: substrate 'auto' has no option 'trst'",
            "did you mean trust? it has: trust, expected_actions",
        ),
    ],
)
def test_a_mistake_suggests_what_was_meant(
    words: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *words)
    assert said[0] == error
    assert said[1].startswith("hint: ")
    assert hint in said[1]


def test_a_value_that_is_not_possible_suggests_one_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "run", "--network", "brige", "--", "true")[0]
    assert said == (
        "error: argument --network: 'brige' is not possible; did you mean bridge? choose from: none, bridge, host"
    )


@pytest.mark.parametrize("words", [(), ("image",), ("pool",)])
def test_without_a_command_the_help_is_printed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    lines = refusal(capsys, *words)
    assert lines[0].startswith(f"usage: {' '.join(('dutyfree', *words))} ")
    assert any("status" in line or "build" in line for line in lines)


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["help", "image", "build"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: dutyfree image build ")


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_every_help_explains_and_ends_with_an_example(parser: argparse.ArgumentParser) -> None:
    assert parser.description
    assert examples(parser)
    shown = f"{parser.format_help()}\n"
    assert all(f"\n  {each}\n" in shown for each in examples(parser)), "an example is on one line, to be copied"


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_are_accepted(example: str) -> None:
    words = shlex.split(example.removeprefix("source <(").removesuffix(")"))
    words = words[: next((place for place, word in enumerate(words) if word in ("&&", ">")), None)]
    assert words[0] == "dutyfree"
    assert callable(build_parser(words[1]).parse_args(words[1:]).execute)


def test_a_command_imports_no_other() -> None:
    program = (
        "import sys; from dutyfree.cli.main import build_parser; build_parser('run');"
        "print(sorted(each for each in sys.modules if each.startswith('dutyfree.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("dutyfree.cli.") for name in eval(done.stdout)}
    assert loaded & set(COMMANDS) == {"run"}


@pytest.mark.parametrize("command", COMMANDS)
def test_terms_of_measuring_are_defined_where_help_uses_them(command: str) -> None:
    shown = " ".join(
        " ".join(each.format_help().split()) for each in parsers(build_parser(command)) if command in each.prog
    )
    if " arm " in shown or " arms" in shown:
        assert "substrate with its options" in shown
    if "T0" in shown:
        assert "T0 (minimal commands)" in shown
    if "the paper" in shown:
        assert "arXiv 2607.01415" in shown
