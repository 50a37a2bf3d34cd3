"""What was not run is named at the end of the test run: it must never look like a pass."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.removal import remove_tree

NOT_RUN = "not run"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    calls = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    not_run = [line for call in calls for name, lines in call.user_properties if name == NOT_RUN for line in lines]
    if not_run:
        terminalreporter.section(f"conformance checks not run ({len(not_run)})")
        for line in not_run:
            terminalreporter.line(line)


@pytest.fixture
def not_run(request: pytest.FixtureRequest) -> list[str]:
    """Where a test leaves the name and the reason of a check that it did not run."""
    lines: list[str] = []
    request.node.user_properties.append((NOT_RUN, lines))  # a report takes it to the process that writes the summary
    return lines


@pytest.fixture(scope="session")
def state_directory() -> Iterator[Path]:
    """Not tmp_path: leaks are looked for in directories of this name alone. It bears a claim's name, as ours."""
    claim = f"{os.getpid()}-{time.monotonic_ns():x}-{'0' * 12}"
    directory = Path(tempfile.mkdtemp(prefix=f"dutyfree-conformance-{claim}-"))
    yield directory
    remove_tree(directory)


@pytest.fixture(autouse=True)
def own_store(state_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks must leave nothing in the image store of the user who runs them."""
    monkeypatch.setenv("DUTYFREE_STATE_DIR", str(state_directory))
