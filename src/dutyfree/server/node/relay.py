"""One action of a client, carried between it and a guest: ids are translated, bytes pass as they are.

The guest is held to its credit by its channel, as always. The client is held to its own here: what it sends past its
window, and ids that it uses twice, end its stream. The node holds at most a window of output for each action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dutyfree.errors import DutyfreeError, GuestMisbehaved, InfraFailed
from dutyfree.guest.exchanges import ActionExchange
from dutyfree.guest.runner import Runner
from dutyfree.server.node.client_run import ClientRun
from dutyfree.wire.frames import FrameKind, data_header, encode_frame
from dutyfree.wire.messages import (
    INPUT_WINDOW_BYTES,
    SOCKET_WINDOW_BYTES,
    Exit,
    InputCredit,
    InputEnd,
    Mode,
    OutputEnd,
    Refused,
    RunFlag,
    Started,
)

if TYPE_CHECKING:
    from dutyfree.server.node.attached import AttachedBox
    from dutyfree.server.node.caller import Caller

_CONNECTIONS: Final = (Mode.DIAL, Mode.ACCEPT)
_WITH_STARTED: Final = (Mode.SESSION, Mode.DIAL, Mode.LISTEN, Mode.ACCEPT, Mode.DATAGRAMS)


class Relay(ActionExchange):
    """The node's side of the action, as the guest's channel sees it."""

    def __init__(
        self, caller: Caller, client_id: int, request: ClientRun, attached: AttachedBox, runner: Runner
    ) -> None:
        credit_bytes = min(request.credit, caller.window_bytes)
        super().__init__(credit_bytes, runner.known_limits)
        self._caller = caller
        self._client_id = client_id
        self._runner = runner
        self.attached = attached
        self.mode = request.mode
        self.expects_started = request.mode in _WITH_STARTED or bool(request.flags & RunFlag.PTY)
        self._pay_from_bytes = max(1, credit_bytes // 4)
        """Credit is returned in large pieces, so that small output does not cost a frame for each."""
        self._allowed_bytes = request.credit - credit_bytes
        """Output that the client has room for, and for which the guest has no credit yet."""
        self._owed_bytes = 0
        """Output that went to the client, and for which the guest may get new credit."""
        self._input_window_bytes = SOCKET_WINDOW_BYTES if request.mode in _CONNECTIONS else INPUT_WINDOW_BYTES
        self._input_bytes = self._input_window_bytes
        """What the client may still send."""

    # From the client.

    def take_input(self, data: bytes) -> None:
        """Pass input on. Raises GuestMisbehaved if the client sends more than the guest has room for."""
        self._input_bytes -= len(data)
        if self._input_bytes < 0:
            raise GuestMisbehaved(f"action {self._client_id} got more input than it has room for")
        self.channel.send_data(data_header(self.id, len(data)), memoryview(data))

    def take_input_end(self) -> None:
        """Pass the end of the input on."""
        self.channel.send(InputEnd(self.id))

    def take_credit(self, size_bytes: int) -> None:
        """The client has room for more output."""
        self._allowed_bytes += size_bytes
        self.pay()

    def pay(self) -> None:
        """Give the guest new credit, as far as the client has room and the link to it is not congested."""
        if self._caller.congested:
            self._caller.stalled.add(self)
            return
        size_bytes = min(self._owed_bytes, self._allowed_bytes)
        if size_bytes >= min(self._pay_from_bytes, self._allowed_bytes) and size_bytes and not self.finished:
            self._owed_bytes -= size_bytes
            self._allowed_bytes -= size_bytes
            self.grant(size_bytes)

    # From the guest.

    def output(self, stream: int, data: bytes) -> None:
        self._caller.send(encode_frame(FrameKind.OUTPUT, self._client_id, data, stream))
        self._owed_bytes += len(data)
        if self._allowed_bytes:
            self.pay()

    def started(self, message: Started) -> None:
        self._caller.send(Started(self._client_id, message.addresses).encode())

    def output_ended(self) -> None:
        if self.mode not in _CONNECTIONS:
            super().output_ended()
        self._caller.send(OutputEnd(self._client_id).encode())

    def input_room(self, size_bytes: int) -> None:
        self._input_bytes += size_bytes
        if self._input_bytes > self._input_window_bytes:
            raise GuestMisbehaved(f"action {self.id} gave credit for input that it was not sent")
        self._caller.send(InputCredit(self._client_id, size_bytes).encode())

    def ended(self, end: Exit | Refused) -> None:
        super().ended(end)
        self._caller.relay_ended(self._client_id)
        if isinstance(end, Refused):
            self._caller.send(Refused(self._client_id, end.errno, end.text, end.reason).encode())
            return
        self._runner.record(self, end, self.end_ns)
        flags = self._runner.flags(self, end)
        counts = (end.execute_ns, end.cpu_us, end.peak_rss_bytes, flags, end.stdout_bytes, end.stderr_bytes)
        self._caller.send(Exit(self._client_id, end.exit_code, end.signal, *counts).encode())

    def failed(self, error: DutyfreeError) -> None:
        super().failed(error)
        self._caller.relay_ended(self._client_id)
        self._caller.fail(self._client_id, self.attached.seen(error))
        if isinstance(error, InfraFailed):
            self.attached.abandon()

    def wake(self) -> None:
        """Nothing waits for it: its frames go to the client as they come."""
