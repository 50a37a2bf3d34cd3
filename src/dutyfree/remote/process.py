"""Background processes and kept sessions of a node, as the client's own classes hold them."""

from __future__ import annotations

from typing import Any, Final

from dutyfree.checked import text, whole
from dutyfree.client.process import terminal_size
from dutyfree.codec.values import flag
from dutyfree.contract import Session
from dutyfree.errors import InvalidRequest, SessionEnded
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Action, Command, Observation, OutputChunk
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.model.process import ProcessInfo
from dutyfree.protocol.forms import PROCESS
from dutyfree.protocol.results import read_chunk, read_observation
from dutyfree.remote.connection import GRACE_S
from dutyfree.remote.sandbox import RemoteSandbox
from dutyfree.tables import Table
from dutyfree.wire.messages import MAX_SIGNAL

_LONGEST_S: Final = MAX_TIMEOUT_S + GRACE_S


class RemoteProcess:
    """What `client.process.Process` holds: the process is in the node's table, and each call goes there."""

    def __init__(self, sandbox: RemoteSandbox, process_id: str, info: ProcessInfo | None = None) -> None:
        self._sandbox = sandbox
        self.id = process_id
        self._info = info

    @property
    def command(self) -> Command:
        """The command that was started."""
        return self.info().command

    def info(self) -> ProcessInfo:
        """As of the last answer of the node. Raises InvalidRequest before the first."""
        if self._info is None:
            raise InvalidRequest(f"nothing was asked about process {self.id} yet", hint="`await box.processes()` asks")
        return self._info

    async def read(self, offset: int, limit_bytes: int) -> OutputChunk | None:
        """The next output from `offset` on; None at the end."""
        answer, body = await self._call("read", offset=offset, limit_bytes=limit_bytes, limit_s=_LONGEST_S)
        self._learn(answer)
        return read_chunk(answer, body)

    async def wait(self) -> Observation:
        """The observation, when it has ended."""
        answer, body = await self._call("wait", limit_s=_LONGEST_S)
        self._learn(answer)
        return read_observation(answer, body)

    async def write(self, data: bytes) -> None:
        """Give it input."""
        await self._call("write", body=data, limit_s=_LONGEST_S)

    async def end_input(self) -> None:
        """Close its standard input."""
        await self._call("end_input")

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._call("signal", signal=whole("the signal", number, least=1, most=MAX_SIGNAL))

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal."""
        rows, cols = terminal_size((rows, cols))
        await self._call("resize", rows=rows, cols=cols)

    async def kill(self) -> None:
        """Kill its whole process tree."""
        await self._call("kill")

    def _learn(self, answer: Table) -> None:
        self._info = answer.required("process", PROCESS.decode_inner)

    async def _call(self, op: str, **arguments: Any) -> tuple[Table, bytes]:
        return await self._sandbox.call(f"process.{op}", process=self.id, **arguments)


class RemoteKeptSession(Session):
    """A session that the node keeps by its name."""

    def __init__(self, sandbox: RemoteSandbox, name: str) -> None:
        self._sandbox = sandbox
        self._name = name
        self._is_alive = True

    @property
    def alive(self) -> bool:
        """As of the last answer of the node."""
        return self._is_alive

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        action = Action(text("the line", line), timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)
        if not self._is_alive:
            raise SessionEnded("the session's shell has exited", hint="open another session")
        answer, body = await self._call(
            "run",
            line=line,
            timeout_s=action.timeout_s,
            output_limit_bytes=action.output_limit_bytes,
            limit_s=_LONGEST_S,  # the line may wait for its turn
        )
        self._is_alive = answer.required("alive", flag)
        return read_observation(answer, body)

    async def interrupt(self) -> None:
        await self._call("interrupt")

    async def close(self) -> None:
        if self._is_alive:
            self._is_alive = False
            await self._call("close")

    async def _call(self, op: str, **arguments: Any) -> tuple[Table, bytes]:
        return await self._sandbox.call(f"session.{op}", name=self._name, **arguments)
