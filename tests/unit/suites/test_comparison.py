"""How `make suites` compares: what counts as a difference, and how the suites' own reports are read."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from support.repository import ROOT

SUITES = ROOT / "tests" / "suites"


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SUITES)
    return importlib.import_module("comparison")


def outcomes(comparison: ModuleType, **tests: str) -> dict:
    return {name: comparison.Outcome(outcome) for name, outcome in tests.items()}


def test_only_what_fails_in_the_cell_alone_is_a_difference(comparison: ModuleType) -> None:
    bare = outcomes(comparison, a="passed", b="failed", c="skipped", d="passed", e="passed")
    cell = outcomes(comparison, a="failed", b="failed", c="failed", d="passed", f="failed")
    assert comparison.only_in_cell(bare, cell) == ["a", "c", "e", "f"]


def test_a_cell_that_gave_no_results_is_a_difference(comparison: ModuleType) -> None:
    bare = outcomes(comparison, a="passed")
    assert comparison.only_in_cell(bare, {}) == [comparison.NO_RESULTS]
    assert comparison.only_in_cell({}, {}) == []


def test_every_known_difference_has_a_place_and_a_reason(comparison: ModuleType) -> None:
    known = comparison.read_known((SUITES / "known.toml").read_text())
    places = importlib.import_module("places")
    names = {each.name for each in places.COMPARISONS}
    assert known
    assert all(each.reason and set(each.where) <= names and each.suite in ("cpython", "git") for each in known)
    test = "test_posix.PosixTester.test_chown"
    assert comparison.reason_for(known, "cpython", "root", test)
    assert comparison.reason_for(known, "cpython", "user", test) is None
    assert comparison.reason_for(known, "git", "root", test) is None


def test_reports_are_read(comparison: ModuleType) -> None:
    suites = importlib.import_module("git").Git()
    lines = ["script t1-x.sh", "ok 1 - one", "not ok 2 - two", "ok 3 # skip three (a) (missing X of X,Y)"]
    lines += ["not ok 4 - four # TODO known breakage", "script t2-y.sh", "ok 1 - one"]
    assert suites.outcomes("t1", "\n".join(lines)) == {
        "t1-x: one": "passed", "t1-x: two": "failed", "t1-x: three (a)": "skipped", "t1-x: four": "passed",
        "t2-y: one": "passed",
    }  # fmt: skip
    cpython = importlib.import_module("cpython").CPython()
    case = '<testcase name="test.test_x.C.{}" status="run" result="completed">{}</testcase>'
    cases = [("a", ""), ("b", "<skipped>why</skipped>"), ("c", "<error/>"), ("d", "<failure/>"), ("c", "")]
    text = f"<testsuites>{''.join(case.format(*each) for each in cases)}</testsuites>"
    assert cpython.outcomes("test_x", text) == {
        "test_x.C.a": "passed", "test_x.C.b": "skipped", "test_x.C.c": "failed", "test_x.C.d": "failed",
    }  # fmt: skip
    assert cpython.outcomes("test_x", "") == {}
