"""What a process of the server gets from its supervisor: settings, a token and sockets, over its standard input."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dutyfree.server.settings import Settings, load_settings

MAX_ORDER_BYTES: Final = 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1
ENOUGH_DESCRIPTORS: Final = 65_536
"""No more than that: sandboxes inherit the limit, and some programs close all descriptors one by one."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a node or a gateway is to be started."""

    settings_file: str | None
    changes: dict[str, Any]
    """Settings from the command line, over those of the file."""
    gateway_token: str
    """The secret between the node and its gateways."""
    sockets: dict[str, int]
    """Bound sockets, by what they are for: descriptors that the process inherits."""
    ready: int
    """A descriptor to which one byte is written when the process serves."""
    supervisor: int

    def dumps(self) -> bytes:
        """As bytes, for the standard input of the process."""
        names = ("settings_file", "changes", "gateway_token", "sockets", "ready", "supervisor")
        return json.dumps({name: getattr(self, name) for name in names}).encode()

    def settings(self) -> Settings:
        """The settings. Raises InvalidRequest."""
        return with_changes(
            load_settings(None if self.settings_file is None else Path(self.settings_file)), self.changes
        )

    def listening(self, what: str) -> socket.socket | None:
        """The bound socket for this purpose, if there is one."""
        descriptor = self.sockets.get(what)
        return None if descriptor is None else socket.socket(fileno=descriptor)

    @property
    def is_orphaned(self) -> bool:
        """Whether the supervisor has ended."""
        return os.getppid() != self.supervisor

    def say_ready(self) -> None:
        """Tell the supervisor that the process serves."""
        os.write(self.ready, b"r")
        os.close(self.ready)


def with_changes(settings: Settings, changes: dict[str, Any]) -> Settings:
    """The settings with some of them replaced, paths as text."""
    values = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    for name, value in changes.items():
        values[name] = Path(value) if name in ("directory", "socket", "certificate", "key") else value
    return Settings(**values)


def read_order() -> Order:
    """The order on the standard input. The process ends when its supervisor does."""
    order = Order(**json.loads(sys.stdin.buffer.read(MAX_ORDER_BYTES)))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if order.is_orphaned:
        raise SystemExit(1)
    _raise_descriptor_limit()
    return order


def _raise_descriptor_limit() -> None:
    """A thousand sandboxes and their clients need more descriptors than many systems give at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
