"""The status of pools, from outside: of the living alone, and believed no further than numbers and names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from dutyfree import claims
from dutyfree.cli.main import main
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.status import PoolStatus
from dutyfree.pool.status_codec import POOL_STATUS
from dutyfree.pool.status_file import StatusFile, read_all

HOST = """
import asyncio, dutyfree
async def run():
    async with dutyfree.local("process", pool=dutyfree.PoolOptions(sandboxes=3)) as host:
        async with host.lease() as box:
            await asyncio.sleep(1.5)
            print("shown", flush=True)
            await asyncio.sleep(60)
asyncio.run(run())
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the machine's: others have pools, too."""
    monkeypatch.setattr(claims, "state_base", lambda: tmp_path)
    tmp_path.chmod(0o700)


async def some_status() -> PoolStatus:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=3)) as host, host.lease() as box:
        await box.run("true")
        return host.pool.status()


async def test_what_is_shown_is_what_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    status = await some_status()
    board = StatusFile()
    board.write(status)
    assert [notice.status for notice in read_all()] == [status]
    assert main(["pool", "status"]) == 0
    printed = capsys.readouterr().out
    assert "1 of 3: 1 leased" in printed
    assert "1 lease given (cold 1)" in printed
    assert main(["pool", "status", "--prometheus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    samples = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples)) > 10
    assert len([line for line in lines if line.startswith("# TYPE")]) == 16
    assert main(["pool", "status", "--json"]) == 0
    [printed_status] = json.loads(capsys.readouterr().out)
    assert POOL_STATUS.decode(printed_status) == status
    assert main(["top", "--count", "1"]) == 0
    assert "process" in capsys.readouterr().out
    board.close()
    assert main(["pool", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"limit": "\x1b[31m"},
        {"saved_s": float("nan")},
        {"acquires": {"hit": "many"}},
        {"outcomes": {}},
        {"version": 99},
    ],
)
async def test_what_no_pool_shows_is_left_out(broken: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    board = StatusFile()
    board.write(await some_status())
    path = board._claim.directory / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | broken))
    assert read_all() == []
    assert main(["pool", "status"]) == 1
    assert "\x1b" not in capsys.readouterr().out
    board.close()


@pytest.mark.slow
def test_a_killed_process_shows_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "shown\n"
        assert process.pid in [notice.pid for notice in read_all()]
        process.kill()
        process.wait(10)
        assert process.pid not in [notice.pid for notice in read_all()]
    StatusFile().close()
    left = claims.state_base() / "pools"
    assert not list(left.glob(f"{process.pid}-*")), "the next pool removes what is left"
