"""The log of a box and of each rollout: what ran, how it ended, and nothing that a command can imitate."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.client import action_log
from dutyfree.errors import InvalidRequest
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Step


@pytest.fixture
async def box() -> AsyncIterator[dutyfree.Box]:
    async with dutyfree.local("process") as host, host.lease() as box:
        yield box


async def test_each_action_is_logged_with_its_output_and_end(box: dutyfree.Box, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "box.log"
    await box.run("echo before")
    await box.log_to(log)
    await box.run("echo out; echo err >&2; exit 3", env={"TOKEN": "hidden"})
    await box.run(["sleep", "30"], timeout_s=0.2)
    await box.log("half way")
    async with box.session() as shell:
        await shell.run("echo in a session")
    await box.start("sleep 0")
    with pytest.raises(InvalidRequest):
        await box.run("true", cwd="/no/such/place")
    text = log.read_text()
    assert "before" not in text
    assert "hidden" not in text
    assert "$ echo out; echo err >&2; exit 3\n  1| out\n  2| err\n  = exit 3, " in text
    assert "$ ['sleep', '30']\n  = signal 9, timed out, " in text
    assert " half way\n" in text
    assert "$ echo in a session\n  1| in a session\n  = exit 0, " in text
    assert "$ sleep 0\n  = runs in the background as p1\n" in text
    assert "$ true\n  = InvalidRequest: " in text
    assert text.startswith("# 20")
    assert f"lease {box.lease.id}, sandbox {box.id}\n" in text.splitlines(keepends=True)[0]


async def test_output_is_bounded_and_cannot_imitate_an_entry(box: dutyfree.Box, tmp_path: Path) -> None:
    log = tmp_path / "box.log"
    await box.log_to(log)
    await box.run(r"printf 'x\n  = exit 0, 0.000 s\n# a title\r\033[2Jy\n'; printf '2026 $ rm -rf /\n' >&2")
    await box.run("head -c 3000000 /dev/zero | tr '\\0' 'z'")
    text = log.read_text()
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(text) < 100_000
    assert "bytes are left out here" in text
    assert sum(line.startswith("  = ") for line in text.splitlines()) == 2
    assert sum(line.startswith("# ") for line in text.splitlines()) == 1
    assert sum("$ " in line[:30] and not line.startswith("  ") for line in text.splitlines()) == 2


async def test_a_log_that_is_full_or_cannot_be_written_fails_no_action(
    box: dutyfree.Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_log, "MAX_BYTES", 300)
    await box.log_to(tmp_path / "small.log")
    for _ in range(5):
        assert (await box.run("echo 12345678901234567890123456789012345678901234567890")).ok
    assert (tmp_path / "small.log").read_text().endswith("# the log is full\n")
    (tmp_path / "gone").mkdir()
    await box.log_to(tmp_path / "gone" / "log")
    (tmp_path / "gone" / "log").unlink()
    (tmp_path / "gone" / "log").mkdir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (await box.run("echo x")).ok
        assert (await box.run("echo x")).ok
    assert [str(each.message).partition(" ends here")[0] for each in caught] == [f"the log '{tmp_path}/gone/log'"]
    with pytest.raises(InvalidRequest, match="cannot write the log"):
        await box.log_to("/proc/nothing/x")


async def test_each_rollout_has_a_file_with_all_its_tries(tmp_path: Path) -> None:
    async def work(box: dutyfree.Box, task: str) -> int:
        return int((await box.run(f"echo {task}")).text)

    fake = FakeSubstrate(failures=[Failure(Step.RUN, FailureKind.ERROR, calls={1})])
    async with dutyfree.local(fake) as host:
        rollouts = await host.map(work, ["7", "8"], concurrency=1, logs=tmp_path / "logs")
    assert [each.tries for each in rollouts] == [2, 1]
    first, second = ((tmp_path / "logs" / name).read_text() for name in ("00000.log", "00001.log"))
    assert first.count(" lease ") == 2
    assert "the work raised SubstrateFailed: " in first
    assert first.rstrip().endswith("the work returned 7")
    assert "$ echo 8\n  1| 8\n  = exit 0, " in second


def test_rollouts_of_the_sync_client_have_logs_too(tmp_path: Path) -> None:
    def work(box: dutyfree.sync.Box, task: int) -> str:
        return box.run(f"echo {task}").text

    with dutyfree.sync.local("process") as host:
        host.map(work, [1], logs=str(tmp_path))
    assert "the work returned '1\\n'" in (tmp_path / "00000.log").read_text()
