"""Tries the steps of a cell separately: `dutyfree-spawner --try` runs them and prints a line for each."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import SubstrateFailed

TRIAL_S = 30.0
"""The timeout for all steps together; the program itself ends each step after 5 s."""

STEPS = {
    "user-namespace": "make a user namespace",
    "mount-namespace": "make a mount namespace",
    "tmpfs": "mount a tmpfs",
    "bind": "bind the host's root",
    "overlay": "mount an overlay",
    "overlay-host": "mount an overlay over the host's root",
    "pivot-root": "change the root directory (pivot_root)",
    "namespaces": "make pid, uts and ipc namespaces",
    "proc": "mount a /proc of its own",
    "terminals": "mount a devpts of its own",
    "devices": "make device nodes",
    "masks": "hide files of the host",
    "network-namespace": "make a network namespace",
    "loopback": "bring up the loopback interface",
    "cgroup-namespace": "make a cgroup namespace",
    "owners": "give files to the ids of cells",
    "ids": "map a cell's user ids",
    "look": "look at a cell from outside",
    "kill": "end a cell",
    "filter": "set a system call filter",
    "id-mapped-mount": "shift the owners of a mount",
}
"""What each step does, in words. The order is that of `native/spawner/trial.c`."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step."""

    name: str
    errno: int = 0
    """0 if the step worked or was skipped."""
    call: str = ""
    """The system call, or the file, that failed."""
    skipped_for: str = ""
    """The failed step that this one needs."""

    @property
    def failed(self) -> bool:
        """Whether the step was tried and failed."""
        return self.errno != 0

    @property
    def works(self) -> bool:
        """Whether the step was tried and worked."""
        return not self.errno and not self.skipped_for

    @property
    def words(self) -> str:
        """What the step does."""
        return STEPS.get(self.name, self.name)

    @property
    def outcome(self) -> str:
        """The result in words."""
        if self.skipped_for:
            return f"not tried: it needs the step {self.skipped_for}"
        return f"{self.call}: {os.strerror(self.errno)}" if self.errno else "ok"


@dataclass(frozen=True, slots=True)
class Trial:
    """The results of all steps, and of system calls with invalid arguments, which reveal a filter."""

    steps: tuple[Step, ...]
    calls: dict[str, int]
    """The errno of each system call with invalid arguments."""


def run_trial(spawner: Path, *, as_root: bool) -> Trial:
    """Try every step in a separate process; leaves nothing. Raises SubstrateFailed if the trial cannot run."""
    command = [str(spawner), "--try", "root" if as_root else "user"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TRIAL_S, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubstrateFailed(f"the steps of a cell could not be tried: {error}") from None
    return parse(done.stdout.decode("utf-8", "replace"))


def parse(text: str) -> Trial:
    """The results in the program's output. Lines in another form are ignored."""
    steps, calls = [], {}
    for line in text.splitlines():
        match line.split():
            case ["call", name, errno]:
                calls[name] = int(errno)
            case ["step", name, "skip", needed]:
                steps.append(Step(name, skipped_for=needed))
            case ["step", name, errno, call]:
                steps.append(Step(name, int(errno), call if errno != "0" else ""))
    return Trial(tuple(steps), calls)
