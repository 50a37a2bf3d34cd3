"""The example of egress, as it stands, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from support.package_server import PackageServer, package_server
from support.repository import ROOT

DUTYFREE = [sys.executable, "-c", "from dutyfree.cli.main import main; raise SystemExit(main())"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    with package_server(tmp_path_factory.mktemp("packages")) as served:
        yield served


def test_the_agent_reaches_its_index_and_nothing_else() -> None:
    example = ROOT / "examples" / "egress.py"
    assert len(example.read_text().splitlines()) < 45
    with dutyfree.sync.local() as host, host.lease() as box:
        if not box.run(f"{sys.executable} -m pip --version").ok:
            pytest.skip("sandboxes do not see this Python's pip")
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=100, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "0: hello from the index"
    assert lines[1].startswith("1: ")
    assert [line.split()[:2] for line in lines[2:]] == [
        ["allowed", "index.internal:80"],
        ["allowed", "index.internal:80"],
        ["refused", "pypi.org:443"],
    ]


def test_the_command_line_allows_by_name_and_writes_the_journal(server: PackageServer, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    target = f"127.0.0.1:{server.http_port}"
    # Addresses of loopback are in no_proxy for servers inside the sandbox.
    line = f"export no_proxy= NO_PROXY=; curl -sS http://{target}/hello-dutyfree; curl -sS http://other.test/"
    options = ["--private", target, "--deny", "other.test", "--egress-journal", str(journal)]
    done = subprocess.run(
        [*DUTYFREE, "run", *options, "--", "sh", "-c", line], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert '"name": "hello-dutyfree"' in done.stdout
    records = [json.loads(text) for text in journal.read_text().splitlines()]
    assert [(each["name"], each["allowed"], each["rule"]) for each in records] == [
        ("127.0.0.1", True, f"private {target}"),
        ("other.test", False, "deny other.test"),
    ]


@pytest.mark.parametrize(
    "options",
    [["--allow", "127.1"], ["--allow", "10.0.0.1"], ["--allow", "a.b", "--network", "host"], ["--egress-journal", "-"]],
)
def test_the_command_line_says_what_is_wrong(options: list[str]) -> None:
    done = subprocess.run([*DUTYFREE, "run", *options, "--", "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "error" in done.stderr
