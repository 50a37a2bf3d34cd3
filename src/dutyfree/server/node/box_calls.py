"""The calls on one box: what is not an action of its guest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.client.box import Box, destroy_alone
from dutyfree.client.process import Process
from dutyfree.codec import IMAGE
from dutyfree.codec.values import flag, mapping, natural, number, optional, text
from dutyfree.errors import InvalidRequest
from dutyfree.leases.secret import Secret
from dutyfree.model import DEFAULT_KEEP_OUTPUT_BYTES, DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S
from dutyfree.protocol.forms import (
    BOX_FACTS,
    BOX_STATE,
    EGRESS,
    EGRESS_RECORD,
    LEASE,
    METRICS,
    PROCESS,
    SAVED_CACHE,
    read_command,
    read_ttl,
    read_user,
)
from dutyfree.protocol.results import write_chunk, write_observation
from dutyfree.server.node.attached import AttachedBox
from dutyfree.server.node.caller import Caller
from dutyfree.tables import Table

MAX_READ_BYTES: Final = 1024 * 1024
"""The most output of a background process in one answer."""


@dataclass(frozen=True, slots=True)
class BoxCall:
    """One call: who makes it, on which box, with what."""

    caller: Caller
    attached: AttachedBox
    arguments: Table
    body: bytes

    @property
    def box(self) -> Box:
        """The box."""
        return self.attached.box

    @property
    def process(self) -> Process:
        """The background process that the call names. Raises InvalidRequest."""
        return self.box.process(self.arguments.required("process", text))


BoxAnswer = tuple[Any, bytes]
BoxHandler = Callable[[BoxCall], Awaitable[BoxAnswer]]
_DONE: Final[BoxAnswer] = ({}, b"")


async def _renew(call: BoxCall) -> BoxAnswer:
    ttl_s = read_ttl(call.arguments)
    await call.box.renew(ttl_s)
    if ttl_s is not None or call.box.lease.expires_at is not None:  # otherwise nothing else would end it
        call.caller.ends_with_it.discard(call.attached.lease_id)
    return {"lease": LEASE.write(call.box.lease)}, b""


async def _set_labels(call: BoxCall) -> BoxAnswer:
    await call.box.set_labels(call.arguments.required("labels", mapping(text)))
    return {"lease": LEASE.write(call.box.lease)}, b""


async def _set_env(call: BoxCall) -> BoxAnswer:
    changes: dict[str, str | Secret | None] = dict(call.arguments.given("env", mapping(optional(text)), {}))
    secrets = call.arguments.given("secrets", mapping(text), {})
    changes |= {name: Secret(value) for name, value in secrets.items()}
    await call.box.set_env(changes)
    return {"state": BOX_STATE.write(call.attached.state())}, b""


async def _state(call: BoxCall) -> BoxAnswer:
    return {"lease": LEASE.write(call.box.lease), "state": BOX_STATE.write(call.attached.state())}, b""


async def _reset(call: BoxCall) -> BoxAnswer:
    await call.box.reset()
    return {"state": BOX_STATE.write(call.attached.state())}, b""


async def _destroy(call: BoxCall) -> BoxAnswer:
    if call.arguments.given("alone", flag, False):
        await destroy_alone(call.box)
    else:
        await call.box.destroy()
    return _DONE


async def _fork(call: BoxCall) -> BoxAnswer:
    forks = [call.caller.attach(each) for each in await call.box.fork(call.arguments.required("count", natural))]
    return {"forks": [BOX_FACTS.write(each.facts()) for each in forks]}, b""


async def _snapshot(call: BoxCall) -> BoxAnswer:
    snapshot = await call.box.snapshot()
    owner = call.box.lease.owner
    try:
        image = call.caller.node.snapshots.add(owner, snapshot)
    except BaseException:
        await snapshot.discard()
        raise
    return {"image": IMAGE.write(image), "owner": owner}, b""


async def _save_cache(call: BoxCall) -> BoxAnswer:
    return {"saved": SAVED_CACHE.write(await call.box.save_cache(call.arguments.required("name", text)))}, b""


async def _pause(call: BoxCall) -> BoxAnswer:
    await call.box.pause()
    return _DONE


async def _resume(call: BoxCall) -> BoxAnswer:
    await call.box.resume()
    return _DONE


async def _metrics(call: BoxCall) -> BoxAnswer:
    return {"metrics": METRICS.write(await call.box.metrics())}, b""


async def _start(call: BoxCall) -> BoxAnswer:
    given = call.arguments.given
    terminal = given("terminal", optional(_size), None)
    process = await call.box.start(
        call.arguments.required("command", read_command),
        cwd=given("cwd", optional(text), None),
        env=given("env", mapping(text), {}),
        stdin=given("stdin", flag, False),
        timeout_s=given("timeout_s", optional(number), None),
        keep_output_bytes=given("keep_output_bytes", natural, DEFAULT_KEEP_OUTPUT_BYTES),
        user=given("user", optional(read_user), None),
        merge=given("merge", flag, False),
        terminal=terminal,
        reader_wait_s=given("reader_wait_s", number, 0.0),
    )
    return {"process": PROCESS.write(process.info)}, b""


async def _watch(call: BoxCall) -> BoxAnswer:
    given = call.arguments.given
    process = await call.box.start_watch(
        call.arguments.required("path", text),
        recursive=given("recursive", flag, False),
        keep_output_bytes=given("keep_output_bytes", natural, DEFAULT_KEEP_OUTPUT_BYTES),
        user=given("user", optional(read_user), None),
    )
    return {"process": PROCESS.write(process.info)}, b""


def _size(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidRequest("the size of a terminal is rows and columns")
    return natural(value[0]), natural(value[1])


async def _processes(call: BoxCall) -> BoxAnswer:
    return {"processes": [PROCESS.write(each) for each in await call.box.processes()]}, b""


async def _process_info(call: BoxCall) -> BoxAnswer:
    return {"process": PROCESS.write(call.process.info)}, b""


async def _process_read(call: BoxCall) -> BoxAnswer:
    limit_bytes = min(call.arguments.required("limit_bytes", natural), MAX_READ_BYTES)
    process = call.process
    document, data = write_chunk(
        await process.read(call.arguments.required("offset", natural), limit_bytes=limit_bytes)
    )
    return {**document, "process": PROCESS.write(process.info)}, data


async def _process_wait(call: BoxCall) -> BoxAnswer:
    process = call.process
    document, data = write_observation(await process.wait())
    return {**document, "process": PROCESS.write(process.info)}, data


async def _process_write(call: BoxCall) -> BoxAnswer:
    await call.process.write(call.body)
    return _DONE


async def _process_end_input(call: BoxCall) -> BoxAnswer:
    await call.process.end_input()
    return _DONE


async def _process_signal(call: BoxCall) -> BoxAnswer:
    await call.process.signal(call.arguments.required("signal", natural))
    return _DONE


async def _process_kill(call: BoxCall) -> BoxAnswer:
    await call.process.kill()
    return _DONE


async def _process_resize(call: BoxCall) -> BoxAnswer:
    rows, cols = _size([call.arguments.required("rows", natural), call.arguments.required("cols", natural)])
    await call.process.resize(rows, cols)
    return _DONE


async def _session_keep(call: BoxCall) -> BoxAnswer:
    given = call.arguments.given
    await call.box.keep_session(
        call.arguments.required("name", text),
        cwd=given("cwd", optional(text), None),
        env=given("env", mapping(text), {}),
        user=given("user", optional(read_user), None),
    )
    return _DONE


async def _session_check(call: BoxCall) -> BoxAnswer:
    return {"alive": (await call.box.kept_session(call.arguments.required("name", text))).alive}, b""


async def _session_run(call: BoxCall) -> BoxAnswer:
    session = await call.box.kept_session(call.arguments.required("name", text))
    seen = await session.run(
        call.arguments.required("line", text),
        timeout_s=call.arguments.given("timeout_s", number, DEFAULT_TIMEOUT_S),
        output_limit_bytes=call.arguments.given("output_limit_bytes", natural, DEFAULT_OUTPUT_LIMIT_BYTES),
    )
    document, data = write_observation(seen)
    return {**document, "alive": session.alive}, data


async def _session_interrupt(call: BoxCall) -> BoxAnswer:
    await (await call.box.kept_session(call.arguments.required("name", text))).interrupt()
    return _DONE


async def _session_close(call: BoxCall) -> BoxAnswer:
    await (await call.box.kept_session(call.arguments.required("name", text))).close()
    return _DONE


async def _egress_set(call: BoxCall) -> BoxAnswer:
    egress = call.caller.node.rules.check_egress(call.arguments.required("egress", EGRESS.decode_inner))
    await call.box.egress.set(egress)
    return _DONE


async def _egress_journal(call: BoxCall) -> BoxAnswer:
    egress = call.box.egress
    records = [EGRESS_RECORD.write(each) for each in egress.journal()]
    rules = EGRESS.write(egress.rules)
    return {"records": records, "dropped": egress.dropped, "notes": list(egress.notes), "rules": rules}, b""


HANDLERS: Final[Mapping[str, BoxHandler]] = {
    "box.renew": _renew,
    "box.labels": _set_labels,
    "box.env": _set_env,
    "box.state": _state,
    "box.reset": _reset,
    "box.destroy": _destroy,
    "box.fork": _fork,
    "box.snapshot": _snapshot,
    "box.save_cache": _save_cache,
    "box.pause": _pause,
    "box.resume": _resume,
    "box.metrics": _metrics,
    "process.start": _start,
    "process.watch": _watch,
    "process.list": _processes,
    "process.info": _process_info,
    "process.read": _process_read,
    "process.wait": _process_wait,
    "process.write": _process_write,
    "process.end_input": _process_end_input,
    "process.signal": _process_signal,
    "process.kill": _process_kill,
    "process.resize": _process_resize,
    "session.keep": _session_keep,
    "session.check": _session_check,
    "session.run": _session_run,
    "session.interrupt": _session_interrupt,
    "session.close": _session_close,
    "egress.set": _egress_set,
    "egress.journal": _egress_journal,
}
