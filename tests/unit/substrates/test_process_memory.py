"""The memory of a process tree, from a fake /proc and from the real one."""

import os
import subprocess
from pathlib import Path

from dutyfree.model import Usage
from dutyfree.substrates.process_memory import MAX_PROCESSES, tree_usage

KIB = 1024


def add_process(proc: Path, pid: int, *children: int, pss_kib: int | None = None, resident_pages: int = 0) -> None:
    task = proc / f"{pid}/task/{pid}"
    task.mkdir(parents=True)
    (task / "children").write_text(" ".join(map(str, children)))
    (proc / f"{pid}/statm").write_text(f"900 {resident_pages} 0 0 0 0 0\n")
    if pss_kib is not None:
        (proc / f"{pid}/smaps_rollup").write_text(f"00-ff ---p 0 00:00 0 [rollup]\nRss: 999 kB\nPss: {pss_kib} kB\n")


def test_a_tree_is_added_up(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 11, 12, pss_kib=100)
    add_process(tmp_path, 11, 13, pss_kib=20)
    add_process(tmp_path, 13, pss_kib=3)
    # 12 has ended after it was listed.
    assert tree_usage(10, proc=tmp_path) == Usage(123 * KIB)


def test_resident_pages_count_where_shares_cannot_be_read(tmp_path: Path) -> None:
    add_process(tmp_path, 10, resident_pages=7)
    assert tree_usage(10, proc=tmp_path) == Usage(7 * os.sysconf("SC_PAGESIZE"))


def test_a_process_that_is_gone_and_a_tree_that_is_too_large_are_not_measured(tmp_path: Path) -> None:
    assert tree_usage(10, proc=tmp_path) is None
    add_process(tmp_path, 10, *range(100, 100 + MAX_PROCESSES), pss_kib=1)
    assert tree_usage(10, proc=tmp_path) is None


def test_a_real_process_with_a_child() -> None:
    line = "sleep 30 & echo ready; wait"
    with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = tree_usage(process.pid)
        os.killpg(process.pid, 9)
    assert found is not None
    assert 100 * KIB < found.memory_bytes < 64 * KIB * KIB
