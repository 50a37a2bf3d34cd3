"""`dutyfree shell` on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

SHELL = [sys.executable, "-m", "dutyfree", "shell", "--quiet", "--substrate", "process"]


class Screen:
    """A terminal with a `dutyfree shell` on it."""

    def __init__(self, *words: str) -> None:
        self.controller, self.device = pty.openpty()
        self.resize(31, 91)
        self.before = termios.tcgetattr(self.device)
        self.child = subprocess.Popen(
            [*SHELL, *words], stdin=self.device, stdout=self.device, stderr=self.device, start_new_session=True
        )
        self.shown = b""

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.device, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.controller, keys)

    def expect(self, text: bytes) -> None:
        deadline = time.monotonic() + 20
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} never came: {self.shown!r}"
            if select.select([self.controller], [], [], 0.1)[0]:
                self.shown += os.read(self.controller, 4096)
        self.shown = self.shown.split(text, 1)[1]

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.controller)
        os.close(self.device)


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen(
        "--", "sh", "-c", "stty -echo; trap 'stty size' WINCH; echo ready; while :; do read line; eval \"$line\"; done"
    )
    screen.expect(b"ready")
    yield screen
    screen.close()


def test_it_is_a_terminal_of_the_same_size(screen: Screen) -> None:
    screen.type(b"tty; stty size\n")
    screen.expect(b"/dev/pts/")
    screen.expect(b"31 91")


def test_a_new_window_size_arrives(screen: Screen) -> None:
    screen.resize(41, 101)
    os.kill(screen.child.pid, 28)
    screen.type(b"stty size\n")
    screen.expect(b"41 101")


def test_ctrl_c_goes_to_the_program_inside(screen: Screen) -> None:
    screen.type(b"trap 'echo caught' INT; echo armed\n")
    screen.expect(b"armed")
    screen.type(b"\x03")
    screen.expect(b"caught")
    assert screen.child.poll() is None


def test_the_exit_code_is_passed_on_and_the_terminal_restored(screen: Screen) -> None:
    screen.type(b"exit 5\n")
    assert screen.child.wait(10) == 5
    assert termios.tcgetattr(screen.device) == screen.before


def test_without_a_command_there_is_a_shell() -> None:
    screen = Screen()
    try:
        screen.type(b"echo $((6*7))x\n")
        screen.expect(b"42x")
        screen.type(b"exit\n")
        assert screen.child.wait(10) == 0
    finally:
        screen.close()


def test_without_a_terminal_it_says_so() -> None:
    done = subprocess.run(SHELL, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "error: shell needs a terminal\nhint: " in done.stderr
