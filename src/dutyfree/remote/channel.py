"""The actions of one box on the connection to its node."""

from __future__ import annotations

from dutyfree.errors import DutyfreeError, GuestMisbehaved, InfraFailed, LinkFailed, SandboxGone, SubstrateFailed
from dutyfree.remote.connection import NodeConnection
from dutyfree.wire.action_channel import ActionChannel
from dutyfree.wire.fields import number_field
from dutyfree.wire.frames import Frame
from dutyfree.wire.messages import (
    BOX_TAG,
    Exit,
    InputCredit,
    Output,
    OutputEnd,
    Refused,
    Request,
    Signal,
    Started,
    decode_guest,
)

_SIGKILL = 9


class RemoteChannel(ActionChannel):
    """A guest behind a node. It ends with the lease, or with the connection for good."""

    def __init__(self, connection: NodeConnection, box: int) -> None:
        super().__init__()
        self._connection = connection
        self._box = box
        self._suffix = number_field(BOX_TAG, box)
        self._write = connection.send
        connection.add_box(box, self)

    @property
    def congested(self) -> bool:
        return self._connection.congested

    def send_data(self, header: bytes, data: memoryview) -> None:
        self._write(header + data)

    def _payload(self, request: Request) -> bytes:
        return request.payload() + self._suffix

    def _next_id(self) -> int:
        action_id = self._connection.next_id()
        self._connection.expect(action_id, self)
        return action_id

    def _disconnect(self) -> None:
        for action_id in self._exchanges:  # actions without a waiting caller must not go on there
            self._write(Signal(action_id, _SIGKILL, tree=True).encode())
        self._connection.remove_box(self._box)

    def close(self) -> None:
        self.fail(SubstrateFailed("the sandbox was destroyed while this was under way"))

    def take(self, frame: Frame) -> None:
        """A frame of one of its actions, from the node."""
        try:
            message = decode_guest(frame)
            if not isinstance(message, Output | OutputEnd | Exit | Refused | Started | InputCredit):
                raise GuestMisbehaved(f"a frame of kind {frame.kind} for an action")
            if message.id in self._exchanges:  # otherwise it was given up here
                self._take_for_action(message)
        except GuestMisbehaved as error:
            self.fail(LinkFailed(f"the server broke the protocol: {error.message}"))

    def take_failure(self, action_id: int, error: DutyfreeError) -> None:
        """The node cannot go on with one of its actions."""
        exchange = self._exchanges.pop(action_id, None)
        if exchange is not None:
            exchange.finished = True
            exchange.failed(error)
        if isinstance(error, SandboxGone | InfraFailed):  # of the whole sandbox, which the node has destroyed
            self.fail(error)

    def room(self) -> None:
        """The connection has room again."""
        self._link_drained()
