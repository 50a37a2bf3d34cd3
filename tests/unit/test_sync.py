"""The client without await: same names, same shape, on its own thread."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dutyfree
from dutyfree import contract, sync
from dutyfree.client.box import Box
from dutyfree.client.host_pool import HostPool
from dutyfree.client.local import LocalHost
from dutyfree.client.stream import Stream
from support.repository import ROOT


@pytest.fixture
def box() -> Iterator[sync.Box]:
    with sync.local(substrate="process") as host, host.lease() as box:
        yield box


def test_the_generated_file_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_sync.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sync.LocalHost, LocalHost),
        (sync.HostPool, HostPool),
        (sync.Box, Box),
        (sync.Stream, Stream),
        (sync.Session, contract.Session),
        (sync.Terminal, contract.Terminal),
        (sync.Files, contract.Files),
    ],
)
def test_every_public_name_has_its_twin(ours: type, theirs: type) -> None:
    public = {name for name in dir(theirs) if not name.startswith("_")}
    assert public == {name for name in dir(ours) if not name.startswith("_")}
    for name in public:
        member = inspect.getattr_static(theirs, name)
        if callable(member):
            parameters = inspect.signature(member).parameters
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(parameters), name


def test_run_stream_session_terminal_and_files(box: sync.Box, tmp_path: Path) -> None:
    assert box.run("echo hello", timeout_s=10).text == "hello\n"
    stream = box.stream("echo one; echo two >&2")
    assert {chunk.stream: chunk.data for chunk in stream} == {"stdout": b"one\n", "stderr": b"two\n"}
    assert stream.wait().ok
    with box.session() as shell:
        shell.run("cd /usr")
        assert shell.run("pwd").text == "/usr\n"
    with box.terminal("stty size", rows=20, cols=70) as terminal:
        assert terminal.read() == b"20 70\r\n"
        assert terminal.wait().ok
    box.files.write(str(tmp_path / "a"), b"content")
    assert box.files.read(str(tmp_path / "a")) == b"content"


def test_a_stream_takes_input_in_a_with_block(box: sync.Box) -> None:
    with box.stream("cat") as stream:
        stream.write(b"hello")
        stream.end_input()
        assert b"".join(chunk.data for chunk in stream) == b"hello"
        assert stream.wait().ok


def test_leaving_the_loop_ends_the_command(box: sync.Box, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for _ in box.stream(f"echo started; sleep 1; touch {marker}"):
        break
    time.sleep(1.3)
    assert not marker.exists()


def test_errors_cross_over_as_they_are(box: sync.Box) -> None:
    with pytest.raises(dutyfree.FileFailed):
        box.files.read("/no/such/file")
    with pytest.raises(dutyfree.InvalidRequest):
        box.run("true", timeout_s=-1)


def test_many_threads_can_share_a_box(box: sync.Box) -> None:
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda number: box.run(f"echo {number}").text, range(40)))
    assert seen == [f"{number}\n" for number in range(40)]


def test_map_calls_a_plain_function_in_threads() -> None:
    together = threading.Barrier(3, timeout=30)
    seen: list[tuple[int, int]] = []

    def work(box: sync.Box, task: int) -> str:
        together.wait()
        return box.run(f"echo {task}").text

    with sync.local(substrate="process") as host:
        outcomes = host.map(work, range(6), concurrency=3, on_progress=lambda done, of: seen.append((done, of)))
    assert [each.value for each in outcomes] == [f"{task}\n" for task in range(6)]
    assert all(each.done for each in outcomes)
    assert seen == [(done, 6) for done in range(1, 7)]


def test_map_has_room_for_more_at_once_than_the_loop_has_threads() -> None:
    """Works that wait for their sandboxes must not take the threads that sandboxes need."""
    together = threading.Barrier(48, timeout=60)

    def work(box: sync.Box, task: int) -> bytes:
        together.wait()
        return box.run(f"echo {task} > x; cat x").stdout

    with sync.local(substrate="process") as host:
        outcomes = host.map(work, range(48), concurrency=48)
    assert [each.value for each in outcomes] == [b"%d\n" % task for task in range(48)]


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
def test_what_work_raises_ends_map(error: BaseException) -> None:
    def work(box: sync.Box, task: int) -> None:
        raise error

    with sync.local(substrate="process") as host:
        with pytest.raises(ValueError if isinstance(error, ValueError) else RuntimeError) as caught:
            host.map(work, [1])
        assert error in (caught.value, caught.value.__cause__)
        with host.lease() as box:  # the host's thread lives
            assert box.run("true").ok


def test_ctrl_c_ends_map_and_the_sandboxes_of_those_that_go_on(tmp_path: Path) -> None:
    program = f"""
import os, signal, threading, time
from pathlib import Path
import dutyfree
from dutyfree import sync

# A test run in the background of a shell has inherited that Ctrl-C is to be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
ended = threading.Event()

def work(box, task):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    time.sleep(1)
    try:
        box.run("true")
    except dutyfree.DutyfreeError as error:
        Path({str(tmp_path / "said")!r}).write_text(type(error).__name__)
        ended.set()

with sync.local(substrate="process") as host:
    try:
        host.map(work, [1])
    except KeyboardInterrupt:
        assert ended.wait(30)
        print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert (tmp_path / "said").read_text() == "LeaseLost"


def test_nothing_is_left_of_a_closed_host() -> None:
    before = set(threading.enumerate())
    with sync.local(substrate="process") as host:
        with host.lease() as box:
            assert "dutyfree" in {thread.name for thread in set(threading.enumerate()) - before}
        assert not box.alive
    assert set(threading.enumerate()) <= before
    with pytest.raises(dutyfree.InvalidRequest, match="not open"):
        box.run("true")


def test_a_host_that_cannot_open_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(dutyfree.InvalidRequest), sync.local(substrate="nowhere"):
        pass
    assert set(threading.enumerate()) <= before


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_waiting_for_ever(box: sync.Box) -> None:
    child = os.fork()
    if child == 0:
        try:
            box.run("true")
        except dutyfree.InvalidRequest:
            os._exit(17)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


def test_ctrl_c_ends_the_call_inside_the_sandbox(tmp_path: Path) -> None:
    marker, alive = tmp_path / "marker", tmp_path / "alive"
    program = f"""
import dutyfree
with dutyfree.sync.local(substrate="process") as host, host.lease() as box:
    try:
        box.run("touch {alive}; sleep 2; touch {marker}")
    except KeyboardInterrupt:
        print(box.run("echo usable").text, flush=True)
        raise
"""
    # A test run in the background of a shell has inherited that Ctrl-C is to be ignored.
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 20
    while not alive.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert out.strip() == b"usable"
    assert b"KeyboardInterrupt" in err
    assert child.returncode == -signal.SIGINT
    time.sleep(2)
    assert not marker.exists()


def test_a_pool_without_an_event_loop() -> None:
    recipe = dutyfree.Recipe(stages=(dutyfree.Stage("image", run=("echo ready > ~/ready",)),))
    with sync.local("process", pool=dutyfree.PoolOptions(sandboxes=4)) as host:
        host.pool.announce([(recipe, 2)], name="step")
        end_s = time.monotonic() + 30
        while host.pool.status().idle < 2:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        with host.lease(recipe, secrets={"TOKEN": "hush"}, ttl_s=0.5) as box:
            box.renew(60)
            time.sleep(0.8)
            assert box.run("cat ~/ready; echo $TOKEN").text == "ready\nhush\n"
        assert host.pool.status().acquires == {"hit": 1}
