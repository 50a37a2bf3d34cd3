"""What was not run is named at the end of the test run: it must never look like a pass."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.removal import remove_tree

NOT_RUN = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_RUN] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    not_run = config.stash.get(NOT_RUN, [])
    if not_run:
        terminalreporter.section(f"conformance checks not run ({len(not_run)})")
        for line in not_run:
            terminalreporter.line(line)


@pytest.fixture
def not_run(request: pytest.FixtureRequest) -> list[str]:
    """Where a test leaves the name and the reason of a check that it did not run."""
    return request.config.stash[NOT_RUN]


@pytest.fixture(scope="session")
def state_directory() -> Iterator[Path]:
    """Not tmp_path: leaks are looked for in directories of this name alone."""
    directory = Path(tempfile.mkdtemp(prefix="dutyfree-conformance-"))
    yield directory
    remove_tree(directory)


@pytest.fixture(autouse=True)
def own_store(state_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What checks save must not stay in the image store of whoever runs them."""
    monkeypatch.setenv("DUTYFREE_STATE_DIR", str(state_directory))
