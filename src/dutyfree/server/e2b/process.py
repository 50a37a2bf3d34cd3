"""E2B's `process.Process` calls, over background processes of the box."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from typing import Any, Final

from dutyfree.client.process import Process
from dutyfree.errors import InvalidRequest
from dutyfree.model import OutputChunk, ProcessInfo
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.server.e2b import connect
from dutyfree.server.e2b.connect import Decoder, JsonObject
from dutyfree.server.e2b.daemon import Call
from dutyfree.server.e2b.errors import RpcError

SIGTERM: Final = 15
SIGKILL: Final = 9
_SIGNALS: Final = {"SIGNAL_SIGTERM": SIGTERM, "SIGNAL_SIGKILL": SIGKILL, SIGTERM: SIGTERM, SIGKILL: SIGKILL}
_GRACE_S: Final = 0.005
"""How long the first event waits for output, an end or a refusal: quick commands need a single packet."""
_CHUNK_BYTES: Final = 48 * 1024
_ROWS, _COLS = 24, 80


async def start(call: Call, body: JsonObject) -> AsyncIterator[bytes]:
    """Start a command, and send its output until it has ended. It goes on when its client goes.

    The client's timeout kills it, as in E2B's daemon.
    """
    config = _object(body, "process")
    size = read_size(body.get("pty"))
    if body.get("tag"):
        raise RpcError("unimplemented", "tags of processes are not kept; use the pid")
    takes_input = body.get("stdin")
    process = await call.box.start(
        [_text(config, "cmd"), *_texts(config.get("args", []), "args")],
        cwd=None if config.get("cwd") in (None, "") else await call.path(_text(config, "cwd")),
        env=_environment(config.get("envs", {})),
        stdin=size is None and (True if takes_input is None else takes_input is True),
        timeout_s=None if call.timeout_s is None or call.timeout_s > MAX_TIMEOUT_S else call.timeout_s,
        keep_output_bytes=call.settings.keep_output_bytes,
        user=call.user,
        terminal=size,
        reader_wait_s=call.settings.reader_wait_s,
    )
    async for data in _events(call, process, 0, is_terminal=size is not None):
        yield data


async def attach(call: Call, body: JsonObject) -> AsyncIterator[bytes]:
    """Send what a process writes from now on, until it has ended or the client's time is over."""
    info = await find(call, body)
    events = _events(call, call.box.process(info.id), info.output_bytes, is_terminal=info.terminal)
    async for data in events:
        yield data


async def _events(call: Call, process: Process, offset: int, *, is_terminal: bool) -> AsyncIterator[bytes]:
    """The events of a process as envelopes. Several are put together where they are there at once."""
    pending = connect.encode({"event": {"start": {"pid": pid_of(process.id)}}})
    wait_s = _GRACE_S
    reading = _read(process, offset)
    try:
        while True:
            await asyncio.wait({reading}, timeout=call.wait_s(wait_s))
            wait_s = call.keepalive_s
            if not reading.done():
                call.check_deadline()
                yield pending or connect.encode({"event": {"keepalive": {}}})
                pending = b""
                continue
            chunk = reading.result()
            if chunk is None:
                break
            if chunk.lost_bytes:
                raise RpcError("data_loss", f"the reader was too slow: {chunk.lost_bytes} bytes of output are lost")
            reading = _read(process, chunk.end)
            name = "pty" if is_terminal else chunk.stream
            data = base64.b64encode(chunk.data).decode()
            yield pending + connect.encode({"event": {"data": {name: data}}})
            pending = b""
    finally:
        reading.cancel()
    info = process.info  # which came with the end of the output: no further question to the node
    if info.signal == SIGKILL and call.is_late:
        raise RpcError("deadline_exceeded", "the command did not end in time, and was killed")
    yield pending + connect.encode({"event": {"end": end_event(info.exit_code, info.signal)}})


def _read(process: Process, offset: int) -> asyncio.Task[OutputChunk | None]:
    """A read that goes on while signs of life are sent."""
    return asyncio.ensure_future(process.read(offset, limit_bytes=_CHUNK_BYTES))


async def list_all(call: Call, body: JsonObject) -> JsonObject:
    """The processes that run."""
    return {"processes": [_listed(each) for each in await call.box.processes() if each.running and not each.watch]}


async def send_input(call: Call, body: JsonObject) -> JsonObject:
    """Give a process input."""
    info = await find(call, body)
    await call.box.process(info.id).write(read_input(_object(body, "input")))
    return {}


async def stream_input(call: Call, chunks: AsyncIterator[bytes]) -> JsonObject:
    """Give a process input, message by message, as it comes."""
    decoder, process = Decoder(call.settings.max_json_bytes), None
    async for data in chunks:
        for message in decoder.feed(data):
            if "start" in message:
                process = call.box.process((await find(call, _object(message, "start"))).id)
            elif "data" in message:
                if process is None:
                    raise InvalidRequest("the first message of the stream must name a process")
                await process.write(read_input(_object(_object(message, "data"), "input")))
    decoder.finish()
    return {}


async def send_signal(call: Call, body: JsonObject) -> JsonObject:
    """Signal a process; SIGKILL ends its whole tree."""
    signal = _SIGNALS.get(body.get("signal", ""))
    if signal is None:
        raise InvalidRequest("signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL")
    process = call.box.process((await find(call, body)).id)
    if signal == SIGKILL:
        await process.kill()
    else:
        await process.signal(signal)
    return {}


async def close_stdin(call: Call, body: JsonObject) -> JsonObject:
    """End the input of a process."""
    await call.box.process((await find(call, body)).id).end_input()
    return {}


async def update(call: Call, body: JsonObject) -> JsonObject:
    """Change the size of a process's terminal."""
    info, size = await find(call, body), read_size(body.get("pty"))
    if size is not None:
        await call.box.process(info.id).resize(*size)
    return {}


async def find(call: Call, body: JsonObject) -> ProcessInfo:
    """The running process that a request names. Raises `not_found`."""
    selector = _object(body, "process")
    pid = selector.get("pid")
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise RpcError("unimplemented", "processes are selected by their pid")
    for info in await call.box.processes():
        if info.running and not info.watch and pid_of(info.id) == pid:
            return info
    raise RpcError("not_found", f"process with pid {pid} not found")


def pid_of(process_id: str) -> int:
    """The number of a background process, p7, as a pid: 7."""
    return int(process_id.removeprefix("p"))


def end_event(exit_code: int | None, signal: int | None) -> JsonObject:
    """How a process ended, in the words of E2B's daemon."""
    if signal is not None:
        status = f"signal: {_signal_name(signal)}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    code = exit_code or 0
    form: JsonObject = {"exitCode": code, "exited": True, "status": f"exit status {code}"}
    return {**form, "error": form["status"]} if code else form


def read_size(pty: object) -> tuple[int, int] | None:
    """The size of a terminal; None without one. Raises InvalidRequest."""
    if pty is None:
        return None
    size = pty.get("size") if isinstance(pty, dict) else None
    if not isinstance(size, dict):
        raise InvalidRequest("pty.size is missing")
    return size.get("rows", _ROWS), size.get("cols", _COLS)


def read_input(given: JsonObject) -> bytes:
    """The bytes of an input. Raises InvalidRequest."""
    data = given.get("stdin", given.get("pty", ""))
    if not isinstance(data, str):
        raise InvalidRequest("the input must be base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("the input must be base64") from None


def _signal_name(number: int) -> str:
    return {SIGKILL: "killed", SIGTERM: "terminated", 2: "interrupt", 1: "hangup", 11: "segmentation fault"}.get(
        number, str(number)
    )


def _listed(info: ProcessInfo) -> JsonObject:
    words = ["/bin/sh", "-c", info.command] if isinstance(info.command, str) else list(info.command)
    return {"pid": pid_of(info.id), "config": {"cmd": words[0], "args": words[1:]}}


def _object(body: JsonObject, name: str) -> JsonObject:
    value = body.get(name)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is missing")
    return value


def _text(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} must be a text")
    return value


def _texts(values: Any, name: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise InvalidRequest(f"{name} must be a list of texts")
    return values


def _environment(values: Any) -> dict[str, str]:
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise InvalidRequest("envs must be texts by name")
    return values
