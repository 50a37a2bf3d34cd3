"""The host's side of one action on a channel: what the channel tells it, and the bounds that the guest must keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from dutyfree.errors import DutyfreeError, GuestMisbehaved
from dutyfree.wire.frames import MAX_DATA_BYTES
from dutyfree.wire.messages import INPUT_WINDOW_BYTES, Exit, Input, InputEnd, OutputCredit, Refused, Resize, Signal

if TYPE_CHECKING:
    from dutyfree.wire.channel import Channel

_NOTHING: Final = memoryview(b"")


class Exchange(ABC):
    """From RUN to EXIT or REFUSED. The channel sets `id` and `channel` when it sends the RUN.

    The channel calls `output`, `wake`, `ended` and `failed`; exactly one of the last two comes, once, and nothing after
    it. None of them may raise anything but GuestMisbehaved.
    """

    id: int = 0
    channel: Channel
    expects_started: bool = False
    """Whether the guest is to send a STARTED, which makes the exchange `up`."""
    up: bool = False
    finished: bool = False

    def __init__(self, output_credit_bytes: int) -> None:
        self.output_credit_bytes = output_credit_bytes
        """How much the guest may still send; the channel takes from it and holds the guest to it."""
        self._input_credit_bytes = INPUT_WINDOW_BYTES
        self._input = _NOTHING
        self._input_ends = False

    @abstractmethod
    def output(self, stream: int, data: bytes) -> None:
        """The guest sent output, within its credit."""

    @abstractmethod
    def ended(self, end: Exit | Refused) -> None:
        """The action is over."""

    @abstractmethod
    def failed(self, error: DutyfreeError) -> None:
        """The channel died first."""

    @abstractmethod
    def wake(self) -> None:
        """Something has changed: the action is `up`, or the input that was offered is on its way."""

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

    def offer_input(self, data: bytes, *, last: bool = False) -> None:
        """Send `data`, and with `last` the end of the input, as far as the guest has room, and the rest later.

        Only one offer at a time: `wake` tells when the next one may come.
        """
        self._input = memoryview(data)
        self._input_ends = last
        self.pump()

    def withdraw_input(self) -> None:
        """Forget the input that was offered and not sent."""
        self._input, self._input_ends = _NOTHING, False

    def input_room(self, size_bytes: int) -> None:
        """The guest takes that much more input. Raises GuestMisbehaved for more than it can have taken."""
        self._input_credit_bytes += size_bytes
        if self._input_credit_bytes > INPUT_WINDOW_BYTES:
            raise GuestMisbehaved(f"action {self.id} gave credit for input that it was not sent")
        self.pump()

    def pump(self) -> None:
        """Send what can be sent of the offered input."""
        if not self._input and not self._input_ends:
            return
        while self._input and self._input_credit_bytes and not self.channel.congested:
            size = min(len(self._input), self._input_credit_bytes, MAX_DATA_BYTES)
            self.channel.send(Input(self.id, bytes(self._input[:size])))
            self._input = self._input[size:]
            self._input_credit_bytes -= size
        if not self._input:
            if self._input_ends:
                self._input_ends = False
                self.channel.send(InputEnd(self.id))
            self.wake()
