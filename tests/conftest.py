"""What every test run does: name what it did not run, for the list at the end of `make test`."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what would take engines apart: from 9.2 on, pytest hides from pytest-xdist 3.8 which tests are a group."""
    if config.getoption("dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        raise pytest.UsageError("the groups of --dist loadgroup are ignored here: pip install 'pytest<9.2'")


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
        test = re.sub(r"@[\w-]+$", "", report.nodeid)  # without its group
        reasons[f"known gap: {test}: {report.wasxfail}"] += 1
    with Path(target).open("a", encoding="utf-8") as lines:
        lines.writelines(f"{reason} ({count} tests)\n" for reason, count in sorted(reasons.items()))


DEEP = 200


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take away the deep trees that tests have made: pytest's own clean-up recurses, and would break a later run."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    base = getattr(factory, "_basetemp", None)
    if base is None:
        return
    deep = ["find", base, "-mindepth", str(DEEP), "-maxdepth", str(DEEP), "-print0"]
    found = subprocess.run(deep, capture_output=True).stdout.split(b"\0")
    below = len(os.fsencode(base)) + 1
    tops = {path[below:].split(b"/", 1)[0] for path in found if path}
    subprocess.run([b"rm", b"-rf", b"--", *(os.fsencode(base) + b"/" + top for top in tops)], check=True)
