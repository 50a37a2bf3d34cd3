"""The journal survives a writer that was killed, and hides no other damage."""

import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.trace import JournalWriter, read_journal
from dutyfree.trace.journal import MAX_LINE_BYTES


def write(path: Path, *records: dict[str, object]) -> None:
    with JournalWriter(path) as journal:
        for record in records:
            journal.append(record)


def test_records_come_back_in_order_over_several_openings(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, {"n": 1}, {"n": 2, "text": "zwölf\n"})
    with JournalWriter(path) as journal:
        journal.append({"n": 3}, sync=True)
    assert list(read_journal(path)) == [{"n": 1}, {"n": 2, "text": "zwölf\n"}, {"n": 3}]
    assert len(path.read_bytes().splitlines()) == 4


@given(st.integers(min_value=0))
def test_cut_anywhere_it_still_reads_and_goes_on(cut: int) -> None:
    whole = b'{"format":"dutyfree-journal","version":1}\n{"n":1}\n{"n":2}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(whole[: cut % (len(whole) + 1)])
        before = list(read_journal(path))
        assert before == [{"n": 1}, {"n": 2}][: len(before)]
        write(path, {"n": "new"})
        assert list(read_journal(path)) == [*before, {"n": "new"}]


def test_a_killed_writer_loses_at_most_its_last_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    program = (
        "import sys; from dutyfree.trace import JournalWriter; w = JournalWriter(sys.argv[1])\n"
        "for n in range(10**9):\n w.append({'n': n, 'pad': 'x' * 500})\n n == 50 and print('going', flush=True)"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout:
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    numbers = [record["n"] for record in read_journal(path)]
    assert len(numbers) > 50
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(
    "damage", [b'{"n":1\n{"n":2}\n', b"[1]\n", b"\n", b"\x00\x00\n", b'{"n":1}x\n', b"[" * 99_999 + b"\n"]
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal"
    write(path, {"n": 0})
    with path.open("ab") as file:
        file.write(damage + b'{"n":9}\n')
    with pytest.raises(InvalidRequest, match="line 3"):
        list(read_journal(path))


@pytest.mark.parametrize("content", [b"hello\n", b"hello", b"{}\n", b'{"format":"dutyfree-journal","version":2}\n'])
def test_another_kind_of_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest):
        JournalWriter(path)
    with pytest.raises(InvalidRequest):
        list(read_journal(path))
    assert path.read_bytes() == content


def test_a_second_writer_is_turned_away(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal"), pytest.raises(CapacityError):
        JournalWriter(tmp_path / "journal")


def test_what_json_cannot_hold_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as journal:
        for record in ({"n": float("nan")}, {"n": b"bytes"}, {"n": "x" * MAX_LINE_BYTES}):
            with pytest.raises(InvalidRequest):
                journal.append(record)
        journal.append({"n": 1})
    assert list(read_journal(path)) == [{"n": 1}]
    with pytest.raises(InvalidRequest):
        journal.append({"n": 2})


def test_a_full_disk_leaves_whole_lines_and_the_writer_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with JournalWriter(path) as journal:
        journal.append({"n": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                journal.append({"n": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        journal.append({"n": 2})
    assert list(read_journal(path)) == [{"n": 1}, {"n": 2}]
