"""The host's side of one action on a channel: callbacks for its frames, and the limits that the guest must keep."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from dutyfree.errors import DutyfreeError, GuestMisbehaved
from dutyfree.wire.frames import MAX_DATA_BYTES, data_header
from dutyfree.wire.messages import (
    INPUT_WINDOW_BYTES,
    Exit,
    InputEnd,
    OutputCredit,
    Refused,
    Resize,
    Signal,
    Started,
)

if TYPE_CHECKING:
    from dutyfree.wire.action_channel import ActionChannel

_NOTHING: Final = memoryview(b"")


class Exchange(ABC):
    """From RUN to EXIT or REFUSED. The channel sets `id` and `channel` when it sends the RUN.

    The channel calls `output`, `wake`, `ended` and `failed`; it calls exactly one of the last two, once, and
    nothing after it. They may raise GuestMisbehaved and nothing else.
    """

    id: int = 0
    channel: ActionChannel
    expects_started: bool = False
    """Whether the guest is to send a STARTED, which makes the exchange `up`."""
    input_window_bytes: ClassVar[int] = INPUT_WINDOW_BYTES
    up: bool = False
    finished: bool = False
    deadline_s: float = math.inf
    """When the channel calls `overdue`, on the clock of the event loop. Who sets it calls `Channel.watch`."""

    def __init__(self, output_credit_bytes: int) -> None:
        self.output_credit_bytes = output_credit_bytes
        """How much output the guest may still send. The channel counts it down, and ends a guest that sends more."""
        self._input_credit_bytes = self.input_window_bytes
        self._input = _NOTHING
        self._input_ends = False

    @abstractmethod
    def output(self, stream: int, data: bytes) -> None:
        """The guest sent output, within its credit."""

    def started(self, message: Started) -> None:
        """The action is `up`."""
        if message.addresses:
            raise GuestMisbehaved(f"action {self.id} has no addresses")
        self.wake()

    def output_ended(self) -> None:
        """The far side of a connection sends nothing more."""
        raise GuestMisbehaved(f"action {self.id} is no connection, and sent the end of its output")

    @abstractmethod
    def ended(self, end: Exit | Refused) -> None:
        """The action is over."""

    @abstractmethod
    def failed(self, error: DutyfreeError) -> None:
        """The channel ended before the action."""

    @abstractmethod
    def wake(self) -> None:
        """Called after a change: the action is `up`, or all of the input that waited was sent."""

    def extend(self, seconds: float) -> None:  # noqa: B027 - most exchanges of tests have no deadline
        """Move the deadline of the action, if it has one."""

    def overdue(self) -> None:
        """The action has not ended at its deadline: move the deadline, or end the channel."""
        raise NotImplementedError

    def grant(self, size_bytes: int) -> None:
        """Let the guest send that much more output."""
        self.output_credit_bytes += size_bytes
        self.channel.send(OutputCredit(self.id, size_bytes))

    def signal(self, number: int, *, tree: bool = False) -> None:
        """Send a signal to the process group or the whole tree of the action."""
        self.channel.send(Signal(self.id, number, tree))

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the action's terminal."""
        self.channel.send(Resize(self.id, rows, cols))

    @property
    def input_waits(self) -> bool:
        """Whether some of the offered input is still to be sent."""
        return bool(self._input)

    def has_input_room(self, size_bytes: int) -> bool:
        """Whether so much could be sent at once."""
        return not self._input and size_bytes <= self._input_credit_bytes and not self.channel.congested

    def offer_input(self, data: bytes, *, last: bool = False) -> None:
        """Send `data`, and with `last` the end of the input: now as far as the guest has room, the rest later.

        Only one offer at a time: the channel calls `wake` when the next one may follow.
        """
        self._input = memoryview(data)
        self._input_ends = last
        self._send_input()

    def send_whole(self, data: bytes) -> bool:
        """Send `data` as one frame, or not at all where there is no room for it now."""
        if not self.has_input_room(len(data)):
            return False
        self.channel.send_data(data_header(self.id, len(data)), memoryview(data))
        self._input_credit_bytes -= len(data)
        return True

    def withdraw_input(self) -> None:
        """Forget the input that was offered and not sent."""
        self._input, self._input_ends = _NOTHING, False

    def input_room(self, size_bytes: int) -> None:
        """The guest gives credit for more input. Raises GuestMisbehaved if that is more than it has received."""
        self._input_credit_bytes += size_bytes
        if self._input_credit_bytes > self.input_window_bytes:
            raise GuestMisbehaved(f"action {self.id} gave credit for input that it was not sent")
        self.pump()

    def pump(self) -> None:
        """Send as much of the input that waits as the credit allows."""
        if not self._input and not self._input_ends:
            return
        self._send_input()
        if not self._input:
            self.wake()

    def _send_input(self) -> None:
        while self._input and self._input_credit_bytes and not self.channel.congested:
            size = min(len(self._input), self._input_credit_bytes, MAX_DATA_BYTES)
            self.channel.send_data(data_header(self.id, size), self._input[:size])
            self._input = self._input[size:]
            self._input_credit_bytes -= size
        if not self._input and self._input_ends:
            self._input_ends = False
            self.channel.send(InputEnd(self.id))
