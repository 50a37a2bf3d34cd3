"""What every test run does: name what it did not run, for the list at the end of `make test`."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Append each reason for skipping, with the number of tests that it stopped, to the file that NOT_RUN names."""
    target = os.environ.get("NOT_RUN")
    if not target:
        return
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    for report in terminalreporter.stats.get("xfailed", []):
        reasons[f"known gap: {report.nodeid}: {report.wasxfail}"] += 1
    with Path(target).open("a", encoding="utf-8") as lines:
        lines.writelines(f"{reason} ({count} tests)\n" for reason, count in sorted(reasons.items()))


@pytest.fixture
def deep_trees(tmp_path: Path) -> Iterator[None]:
    """For tests that make deep trees: where one fails, pytest's own clean-up recurses and breaks a later run."""
    yield
    subprocess.run(["rm", "-rf", "--", *tmp_path.iterdir()], check=True)
