"""Every message of the wire protocol as a frozen value that encodes itself and is decoded from a frame.

Decoding raises GuestMisbehaved for everything that the protocol does not allow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import IntEnum
from typing import Final, Protocol, Self

from dutyfree.errors import GuestMisbehaved
from dutyfree.model.port import MAX_PORT
from dutyfree.values import dataclass
from dutyfree.wire.fields import Fields, bytes_field, number_field
from dutyfree.wire.frames import Frame, FrameKind, encode_frame

VERSION: Final = 1
MAX_EXIT_CODE: Final = 255
MAX_SIGNAL: Final = 64
INPUT_WINDOW_BYTES: Final = 64 * 1024
"""How much stdin may be unread by an action; a guest never gives more credit than that."""
SOCKET_WINDOW_BYTES: Final = 256 * 1024
"""The same for a connection, whose far side is quicker than most commands."""
MAX_OUTPUT_CREDIT_BYTES: Final = 2**63 - 1
BOX_TAG: Final = 13


class Mode(IntEnum):
    """What a RUN starts."""

    ARGV = 0
    SHELL = 1
    APPLET = 2
    SESSION = 3
    LINE = 4
    DIAL = 5
    LISTEN = 6
    ACCEPT = 7
    DATAGRAMS = 8


class RunFlag(IntEnum):
    """How the action's streams are set up: bits, as plain integers, which are quicker than flags."""

    PTY = 1
    STDIN = 2
    MERGE = 4


class ExitFlag(IntEnum):
    """Bits of an EXIT: what happened during the action."""

    TIMED_OUT = 1
    TRUNCATED = 2
    SESSION_ENDED = 4
    DISK_FULL = 8
    OOM_KILLED = 16
    PIDS_LIMITED = 32


class Reason(IntEnum):
    """Why an action was not started. Numbers that a newer guest may send are kept as they are."""

    BAD_REQUEST = 1
    CAPACITY = 2
    CWD = 3
    NO_SUCH_SESSION = 4
    NO_SHELL = 5
    NO_SUCH_USER = 6
    IDS = 7
    CONNECT = 8
    LISTEN = 9


@dataclass(frozen=True, slots=True)
class HostHello:
    """The fields after `version` are for a guest that runs a whole machine; other guests ignore them."""

    version: int
    hostname: bytes = b""
    machine_id: bytes = b""
    """32 hexadecimal digits."""
    seed: bytes = b""
    """For the machine's random numbers; at most 256 bytes."""
    clock_ns: int = 0
    """Since 1970; 0 leaves the machine's clock alone."""

    def encode(self) -> bytes:
        fields = [number_field(1, self.version)]
        identity = ((2, self.hostname), (3, self.machine_id), (4, self.seed))
        fields += [bytes_field(tag, data) for tag, data in identity if data]
        if self.clock_ns:
            fields.append(number_field(5, self.clock_ns))
        return encode_frame(FrameKind.HOST_HELLO, 0, b"".join(fields))


class SharedEntries(tuple[bytes, ...]):
    """Entries of an environment that many actions have in common: their fields are encoded once."""

    fields: bytes

    @classmethod
    def of(cls, entries: Iterable[bytes]) -> Self:
        """The same entries, encoded."""
        shared = cls(entries)
        shared.fields = env_fields(shared)
        return shared

    def followed_by(self, entries: tuple[bytes, ...]) -> Self:
        """The same with these after them."""
        shared = type(self)((*self, *entries))
        shared.fields = self.fields + env_fields(entries)
        return shared


def env_fields(entries: Iterable[bytes]) -> bytes:
    """Entries of an environment as fields of a RUN."""
    return b"".join([bytes_field(3, entry) for entry in entries])


class Request(Protocol):
    """What starts an action: a `Run`, or one that a node passes on."""

    def payload(self) -> bytes:
        """Everything apart from its id, which the channel chooses."""


@dataclass(slots=True)  # not frozen, as Exit: each action makes one, in a third of the time
class Run:
    id: int
    mode: int
    args: tuple[bytes, ...] = ()
    env: tuple[bytes, ...] = field(default=(), repr=False)
    """Not shown: there may be secrets in it."""
    cwd: bytes = b""
    flags: int = 0
    timeout_ms: int = 0
    output_limit: int | None = None
    credit: int = 0
    rows: int = 0
    cols: int = 0
    session: int = 0
    user: bytes = b""
    box: int = 0
    """Of a client of a node alone: which of its sandboxes. No guest gets it."""

    def encode(self) -> bytes:
        return encode_frame(FrameKind.RUN, self.id, self.payload())

    def payload(self) -> bytes:
        """The request apart from its id, which the channel chooses."""
        fields = [number_field(1, self.mode)]
        fields += [bytes_field(2, arg) for arg in self.args]
        fields.append(self.env.fields if isinstance(self.env, SharedEntries) else env_fields(self.env))
        if self.cwd:
            fields.append(bytes_field(4, self.cwd))
        if self.output_limit is not None:
            fields.append(number_field(7, self.output_limit))
        for tag, number in (
            (5, self.flags),
            (6, self.timeout_ms),
            (8, self.credit),
            (9, self.rows),
            (10, self.cols),
            (11, self.session),
        ):
            if number:
                fields.append(number_field(tag, number))
        if self.user:
            fields.append(bytes_field(12, self.user))
        if self.box:
            fields.append(number_field(BOX_TAG, self.box))
        return b"".join(fields)


@dataclass(frozen=True, slots=True)
class Input:
    id: int
    data: bytes

    def encode(self) -> bytes:
        return encode_frame(FrameKind.INPUT, self.id, self.data)


@dataclass(frozen=True, slots=True)
class InputEnd:
    id: int

    def encode(self) -> bytes:
        return encode_frame(FrameKind.INPUT_END, self.id)


@dataclass(frozen=True, slots=True)
class OutputCredit:
    id: int
    size_bytes: int

    def encode(self) -> bytes:
        return encode_frame(FrameKind.OUTPUT_CREDIT, self.id, number_field(1, self.size_bytes))


@dataclass(frozen=True, slots=True)
class Signal:
    id: int
    signal: int
    tree: bool = False

    def encode(self) -> bytes:
        return encode_frame(FrameKind.SIGNAL, self.id, number_field(1, self.signal) + number_field(2, int(self.tree)))


@dataclass(frozen=True, slots=True)
class Resize:
    id: int
    rows: int
    cols: int

    def encode(self) -> bytes:
        return encode_frame(FrameKind.RESIZE, self.id, number_field(1, self.rows) + number_field(2, self.cols))


@dataclass(frozen=True, slots=True)
class Ping:
    data: bytes

    def encode(self) -> bytes:
        return encode_frame(FrameKind.PING, 0, self.data)


@dataclass(frozen=True, slots=True)
class Quit:
    def encode(self) -> bytes:
        return encode_frame(FrameKind.QUIT, 0)


@dataclass(frozen=True, slots=True)
class StoodStill:
    duration_ms: int

    def encode(self) -> bytes:
        return encode_frame(FrameKind.STOOD_STILL, 0, number_field(1, self.duration_ms))


@dataclass(frozen=True, slots=True)
class GuestHello:
    version: int
    pid: int
    features: int = 0

    def encode(self) -> bytes:
        fields = number_field(1, self.version) + number_field(2, self.pid) + number_field(3, self.features)
        return encode_frame(FrameKind.GUEST_HELLO, 0, fields)


@dataclass(frozen=True, slots=True)
class Started:
    id: int
    addresses: tuple[tuple[bytes, int], ...] = ()
    """Of a connection: the far end (address as text, port) and the near one; of a listener, the near one."""

    def encode(self) -> bytes:
        fields = b"".join(
            bytes_field(tag, address) + number_field(tag + 1, port)
            for tag, (address, port) in zip((1, 3), self.addresses, strict=False)
        )
        return encode_frame(FrameKind.STARTED, self.id, fields)


@dataclass(frozen=True, slots=True)
class OutputEnd:
    """The far side of a connection sends nothing more; it may still read."""

    id: int

    def encode(self) -> bytes:
        return encode_frame(FrameKind.OUTPUT_END, self.id)


@dataclass(frozen=True, slots=True)
class Output:
    id: int
    stream: int
    data: bytes

    def encode(self) -> bytes:
        return encode_frame(FrameKind.OUTPUT, self.id, self.data, self.stream)


@dataclass(frozen=True, slots=True)
class InputCredit:
    id: int
    size_bytes: int

    def encode(self) -> bytes:
        return encode_frame(FrameKind.INPUT_CREDIT, self.id, number_field(1, self.size_bytes))


@dataclass(slots=True)
class Exit:
    """The end of an action: exactly one of `exit_code` and `signal` is set."""

    id: int
    exit_code: int | None
    signal: int | None
    execute_ns: int = 0
    cpu_us: int = 0
    peak_rss_bytes: int = 0
    flags: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0

    def encode(self) -> bytes:
        if self.signal is None and self.exit_code is not None:  # a node passes on every end: the usual form is quick
            payload = _USUAL_EXIT.pack(
                *(1, 8, self.exit_code, 3, 8, self.execute_ns, 4, 8, self.cpu_us, 5, 8, self.peak_rss_bytes),
                *(6, 8, self.flags, 7, 8, self.stdout_bytes, 8, 8, self.stderr_bytes),
            )
            return encode_frame(FrameKind.EXIT, self.id, payload)
        numbers = [self.exit_code, self.signal, self.execute_ns, self.cpu_us]
        numbers += [self.peak_rss_bytes, self.flags, self.stdout_bytes, self.stderr_bytes]
        fields = (number_field(tag, number) for tag, number in enumerate(numbers, 1) if number is not None)
        return encode_frame(FrameKind.EXIT, self.id, b"".join(fields))


@dataclass(frozen=True, slots=True)
class Refused:
    id: int
    errno: int
    text: bytes
    reason: int

    def encode(self) -> bytes:
        fields = number_field(1, self.errno) + bytes_field(2, self.text) + number_field(3, self.reason)
        return encode_frame(FrameKind.REFUSED, self.id, fields)


@dataclass(frozen=True, slots=True)
class Pong:
    data: bytes

    def encode(self) -> bytes:
        return encode_frame(FrameKind.PONG, 0, self.data)


@dataclass(frozen=True, slots=True)
class Fault:
    text: bytes

    def encode(self) -> bytes:
        return encode_frame(FrameKind.FAULT, 0, bytes_field(1, self.text))


HostMessage = HostHello | Run | Input | InputEnd | OutputCredit | Signal | Resize | Ping | Quit | StoodStill
GuestMessage = GuestHello | Started | Output | OutputEnd | InputCredit | Exit | Refused | Pong | Fault


def _host_hello(frame: Frame) -> HostHello:
    fields = Fields(frame.payload)
    hostname, machine_id, seed = (fields.blob(tag, b"") for tag in (2, 3, 4))
    return HostHello(fields.number(1), hostname, machine_id, seed, fields.number(5, 0))


def _run(frame: Frame) -> Run:
    fields = Fields(frame.payload)
    return Run(
        id=frame.id,
        mode=fields.number(1),
        args=fields.blobs(2),
        env=fields.blobs(3),
        cwd=fields.blob(4, b""),
        flags=fields.number(5, 0),
        timeout_ms=fields.number(6, 0),
        output_limit=fields.number(7) if fields.has(7) else None,
        credit=fields.number(8, 0),
        rows=fields.number(9, 0),
        cols=fields.number(10, 0),
        session=fields.number(11, 0),
        user=fields.blob(12, b""),
        box=fields.number(BOX_TAG, 0),
    )


def _credit_bytes(frame: Frame, most_bytes: int) -> int:
    size_bytes = Fields(frame.payload).number(1)
    if not 1 <= size_bytes <= most_bytes:
        raise GuestMisbehaved(f"an {FrameKind(frame.kind).name} of {size_bytes} bytes")
    return size_bytes


def _signal(frame: Frame) -> Signal:
    fields = Fields(frame.payload)
    return Signal(frame.id, fields.number(1), bool(fields.number(2, 0)))


def _resize(frame: Frame) -> Resize:
    fields = Fields(frame.payload)
    return Resize(frame.id, fields.number(1), fields.number(2))


def _guest_hello(frame: Frame) -> GuestHello:
    fields = Fields(frame.payload)
    return GuestHello(fields.number(1), fields.number(2), fields.number(3, 0))


def _started(frame: Frame) -> Started:
    if not frame.payload:
        return Started(frame.id)
    fields = Fields(frame.payload)
    addresses = [(fields.blob(tag), fields.number(tag + 1)) for tag in (1, 3) if fields.has(tag)]
    for _, port in addresses:
        if port > MAX_PORT:
            raise GuestMisbehaved(f"a STARTED with a port past {MAX_PORT}")
    return Started(frame.id, tuple(addresses))


def _exit(frame: Frame) -> Exit:
    if len(frame.payload) == _USUAL_EXIT.size:  # every action ends with one, so the usual form has a fast path
        tags, numbers = (values := _USUAL_EXIT.unpack(frame.payload))[::3], values[2::3]
        if tags == _USUAL_EXIT_TAGS and values[1::3] == _USUAL_EXIT_SIZES and numbers[0] <= MAX_EXIT_CODE:
            return Exit(frame.id, numbers[0], None, *numbers[1:])
    fields = Fields(frame.payload)
    exit_code = fields.number(1) if fields.has(1) else None
    signal = fields.number(2) if fields.has(2) else None
    if (exit_code is None) == (signal is None):
        raise GuestMisbehaved("an EXIT needs either an exit code or a signal")
    if (exit_code or 0) > MAX_EXIT_CODE or not 1 <= (1 if signal is None else signal) <= MAX_SIGNAL:
        raise GuestMisbehaved(f"an EXIT with exit code {exit_code} and signal {signal}")
    number = fields.number
    return Exit(frame.id, exit_code, signal, *(number(tag, 0) for tag in range(3, 9)))


_USUAL_EXIT: Final = struct.Struct("<" + "BIQ" * 7)
_USUAL_EXIT_TAGS: Final = (1, 3, 4, 5, 6, 7, 8)
_USUAL_EXIT_SIZES: Final = (8,) * 7


def _refused(frame: Frame) -> Refused:
    fields = Fields(frame.payload)
    return Refused(frame.id, fields.number(1, 0), fields.blob(2, b""), fields.number(3))


_HOST_DECODERS: Final[Mapping[int, Callable[[Frame], HostMessage]]] = {
    FrameKind.HOST_HELLO: _host_hello,
    FrameKind.RUN: _run,
    FrameKind.INPUT: lambda frame: Input(frame.id, frame.payload),
    FrameKind.INPUT_END: lambda frame: InputEnd(frame.id),
    FrameKind.OUTPUT_CREDIT: lambda frame: OutputCredit(frame.id, _credit_bytes(frame, MAX_OUTPUT_CREDIT_BYTES)),
    FrameKind.SIGNAL: _signal,
    FrameKind.RESIZE: _resize,
    FrameKind.PING: lambda frame: Ping(frame.payload),
    FrameKind.QUIT: lambda frame: Quit(),
    FrameKind.STOOD_STILL: lambda frame: StoodStill(Fields(frame.payload).number(1)),
}

_GUEST_DECODERS: Final[Mapping[int, Callable[[Frame], GuestMessage]]] = {
    FrameKind.GUEST_HELLO: _guest_hello,
    FrameKind.STARTED: _started,
    FrameKind.OUTPUT: lambda frame: Output(frame.id, frame.stream, frame.payload),
    FrameKind.OUTPUT_END: lambda frame: OutputEnd(frame.id),
    FrameKind.INPUT_CREDIT: lambda frame: InputCredit(frame.id, _credit_bytes(frame, SOCKET_WINDOW_BYTES)),
    FrameKind.EXIT: _exit,
    FrameKind.REFUSED: _refused,
    FrameKind.PONG: lambda frame: Pong(frame.payload),
    FrameKind.FAULT: lambda frame: Fault(Fields(frame.payload).blob(1, b"")),
}


def decode_host(frame: Frame) -> HostMessage:
    """The host's message in a frame that passed FROM_HOST."""
    return _HOST_DECODERS[frame.kind](frame)


def decode_guest(frame: Frame) -> GuestMessage:
    """The guest's message in a frame that passed FROM_GUEST."""
    return _GUEST_DECODERS[frame.kind](frame)
