"""The judge judged on reset, snapshot, fork, background processes and users: cells that only say so are found out."""

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import ActionStream, Connection, Sandbox, SpanListener, Watch
from dutyfree.errors import DutyfreeError, SubstrateUnavailable
from dutyfree.guest.stream import GuestActionStream
from dutyfree.model import (
    Action,
    Capability,
    Chunk,
    Image,
    ListeningPort,
    Metrics,
    Observation,
    SandboxSpec,
    SavedCache,
    Timing,
)
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.testing import Outcome, all_checks, run_conformance

Change = Callable[[Sandbox, CellSubstrate], None]


class Copier(CellSubstrate):
    """Cells that have copies of what they should show."""

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(replace(spec, mounts=()), on_span)
        for mount in spec.mounts:
            if os.path.exists(mount.source):  # noqa: ASYNC240, PTH110 - it is a test
                await sandbox.files.upload(mount.source, mount.target)
        return sandbox


class Liar(CellSubstrate):
    """Cells that are changed after they were made."""

    def __init__(self, store: Path, change: Change) -> None:
        super().__init__(store=store)
        self._change = change

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)
        self._change(sandbox, self)
        return sandbox


def replace_method(name: str, method: Callable[..., Awaitable[object]]) -> Change:
    return lambda sandbox, _substrate: setattr(sandbox, name, method)


async def nothing() -> None:
    return None


def reset_files_alone(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    async def reset() -> None:
        await sandbox.run(Action("rm -rf /tmp/* /tmp/.[a-z]* /dev/shm/* /srv/*"))

    sandbox.reset = reset  # type: ignore[method-assign]


def fork_afresh(sandbox: Sandbox, substrate: CellSubstrate) -> None:
    async def fork(count: int) -> list[Sandbox]:
        return [await substrate.create(SandboxSpec()) for _ in range(count)]

    sandbox.fork = fork  # type: ignore[method-assign]


def fork_into_one(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    async def fork(count: int) -> list[Sandbox]:
        return [sandbox] * count

    sandbox.fork = fork  # type: ignore[method-assign]


def snapshot_by_reset(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    real = sandbox.snapshot

    async def snapshot() -> object:
        taken = await real()
        await sandbox.reset()
        return taken

    sandbox.snapshot = snapshot  # type: ignore[method-assign, assignment]


def snapshot_of_the_start(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    real = sandbox.snapshot

    async def snapshot() -> object:
        taken = await real()
        taken._image = Image()  # type: ignore[attr-defined]
        return taken

    sandbox.snapshot = snapshot  # type: ignore[method-assign, assignment]


def change_streams(change: Callable[[ActionStream], None], **fields: Any) -> Change:
    """Streams that `change` is called with, of actions in which `fields` are replaced."""

    def changed(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
        real = sandbox.stream

        def stream(action: Action) -> ActionStream:
            made = real(replace(action, **fields))
            change(made)
            return made

        sandbox.stream = stream  # type: ignore[method-assign]

    changed.__name__ = change.__name__
    return changed


def streams_cut_short(stream: ActionStream) -> None:
    """Nothing but the fields."""


def streams_without_signals(stream: ActionStream) -> None:
    async def ignore(_number: int) -> None:
        return None

    stream.signal = ignore  # type: ignore[method-assign]


def streams_without_input(stream: ActionStream) -> None:
    async def swallow(_data: bytes) -> None:
        return None

    stream.write = swallow  # type: ignore[method-assign]


def streams_that_invent_an_exit(stream: ActionStream) -> None:
    real = stream.wait

    async def wait() -> Observation:
        try:
            return await real()
        except DutyfreeError:
            timing = Timing("", 0, 0, 0)
            return Observation(1, None, b"", b"", False, False, 0, 0, False, False, False, 0.0, 0, timing)

    stream.wait = wait  # type: ignore[method-assign]
    stream.__class__ = _Endless


class _Endless(GuestActionStream):
    """Ends where it should raise."""

    async def __anext__(self) -> Chunk:
        try:
            return await super().__anext__()
        except DutyfreeError:
            raise StopAsyncIteration from None


def forget_users(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    """Everything runs as root, whatever was asked for."""
    real, session, terminal = sandbox.run, sandbox.session, sandbox.terminal
    sandbox.run = lambda action: real(replace(action, user=None))  # type: ignore[method-assign]
    sandbox.session = lambda **options: session(**{**options, "user": None})  # type: ignore[method-assign]
    sandbox.terminal = lambda command, **options: terminal(command, **{**options, "user": None})  # type: ignore[method-assign]
    sandbox.files.as_user = lambda user: sandbox.files  # type: ignore[method-assign]


def take_ids_alone(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    """The uid is right, and nothing else of the user."""
    real = sandbox.run
    sandbox.run = lambda action: real(_with_setpriv(action))  # type: ignore[method-assign]


def _with_setpriv(action: Action) -> Action:
    if action.user is None:
        return action
    words = ["/bin/sh", "-c", action.command] if isinstance(action.command, str) else [*action.command]
    uid = str(action.user).replace("conformance", "4711").partition(":")[0]
    return replace(action, command=["setpriv", "--reuid", uid, "--keep-groups", *words], user=None)


def dial_with(change: Callable[[Connection], None]) -> Change:
    def lie(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
        real = sandbox.dial

        async def dial(port: int, **options: Any) -> Connection:
            connection = await real(port, **options)
            change(connection)
            return connection

        sandbox.dial = dial  # type: ignore[method-assign, assignment]

    return lie


def garble(connection: Connection) -> None:
    real = connection.write
    connection.write = lambda data: real(data[:-1] + b"?")  # type: ignore[method-assign]


def end_both(connection: Connection) -> None:
    connection.end_input = connection.close  # type: ignore[method-assign]


def dial_the_first(sandbox: Sandbox, substrate: CellSubstrate) -> None:
    first = vars(substrate).setdefault("first", sandbox.dial)
    sandbox.dial = first  # type: ignore[method-assign]


async def no_ports() -> list[ListeningPort]:
    return []


def watch_nothing(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    real = sandbox.files.watch

    def watch(path: str, *, recursive: bool = False) -> Watch:
        return real("/dev", recursive=recursive)

    sandbox.files.watch = watch  # type: ignore[method-assign]


def watch_shallow(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    real = sandbox.files.watch
    sandbox.files.watch = lambda path, *, recursive=False: real(path)  # type: ignore[method-assign]


async def measure_nothing() -> Metrics:
    return Metrics(time.time(), 0.0, None, 0, 0, None, 0, None, 0)


CASES: list[tuple[Change, set[str]]] = [
    (replace_method("pause", nothing), {"pausing.stands-still", "pausing.calls-are-refused"}),
    (replace_method("resume", nothing), {"pausing.stands-still", "pausing.goes-on", "pausing.cancel"}),
    (watch_nothing, {"watching.kinds", "watching.end"}),
    (watch_shallow, {"watching.recursive"}),
    (
        replace_method("metrics", measure_nothing),
        {"metrics.real", "metrics.cpu", "metrics.memory", "metrics.processes", "metrics.disk"},
    ),
    (
        replace_method("reset", nothing),
        {"reset.files", "reset.processes", "reset.under-way", "reset.sessions", "reset.names", "reset.disk",
         "reset.span", "reset.gone", "reset.cancelled", "reset.meanwhile", "reset.at-once", "fork.reset",
         "snapshot.reset"},
    ),
    (reset_files_alone, {"reset.files", "reset.processes", "reset.names", "reset.under-way", "reset.sessions"}),
    (fork_afresh, {"fork.moment", "fork.independent", "fork.lives-apart", "fork.again", "fork.counts", "fork.span"}),
    (fork_into_one, {"fork.moment", "fork.independent", "fork.lives-apart", "fork.busy"}),
    (snapshot_by_reset, {"snapshot.goes-on", "snapshot.session", "snapshot.between-actions", "snapshot.dev-shm"}),
    (
        change_streams(streams_cut_short, output_limit_bytes=10),
        {"background.output", "background.unread", "background.many", "background.attach"},
    ),
    (change_streams(streams_without_signals), {"background.signal"}),
    (change_streams(streams_without_input), {"background.input"}),
    (
        change_streams(streams_that_invent_an_exit),
        {"background.reset", "background.destroyed", "background.refused"},
    ),
    (
        forget_users,
        {"users.identity", "users.groups", "users.unlisted", "users.environment", "users.unknown", "users.rights",
         "users.files", "users.transfers", "users.session", "users.terminal", "users.signals"},
    ),
    (take_ids_alone, {"users.identity", "users.groups", "users.unlisted", "users.environment", "users.unknown"}),
    (dial_with(garble), {"ports.dial", "ports.large", "ports.many", "ports.half-close"}),
    (dial_with(end_both), {"ports.large", "ports.half-close", "ports.many"}),
    (dial_the_first, {"ports.neighbour"}),
    (replace_method("listening_ports", no_ports), {"ports.listening"}),
    (snapshot_of_the_start, {"snapshot.files", "snapshot.apart", "snapshot.outlives", "snapshot.chain"}),
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("change", "broken"), CASES, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_cell_that_lies_is_found_out(change: Change, broken: set[str], tmp_path: Path) -> None:
    checks = [one for one in all_checks() if one.id in broken]
    assert len(checks) == len(broken)
    try:
        report = await run_conformance(Liar(tmp_path / "store", change), checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    assert {one.id for one in report.results if one.outcome is not Outcome.FAILED} == set()


class Forgetful(CellSubstrate):
    """Cells whose caches are saved in name only."""

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)

        async def save_cache(name: str) -> SavedCache:
            return SavedCache("sha256:0", 1, 0, 0)

        sandbox.save_cache = save_cache  # type: ignore[method-assign]
        return sandbox


async def test_a_substrate_whose_caches_are_no_caches_is_found_out(tmp_path: Path) -> None:
    checks = [one for one in all_checks() if one.id.startswith("caches.")]
    try:
        report = await run_conformance(Forgetful(store=tmp_path / "store"), checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    kept = {one.id for one in report.results if one.outcome is Outcome.PASSED}
    assert kept == {"caches.snapshots"}, "which saves nothing"


async def test_a_substrate_that_copies_what_it_should_show_is_found_out(tmp_path: Path) -> None:
    checks = [one for one in all_checks() if one.id.startswith("mounts.")]
    try:
        report = await run_conformance(Copier(store=tmp_path / "store"), checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    kept = {one.id for one in report.results if one.outcome is Outcome.PASSED}
    assert kept == {"mounts.content"}


async def test_a_substrate_that_claims_less_than_it_does_is_found_out(tmp_path: Path) -> None:
    class Modest(CellSubstrate):
        @property
        def capabilities(self) -> frozenset[Capability]:
            return super().capabilities - {Capability.FORK}

    checks = [one for one in all_checks() if one.id.startswith("capabilities.")]
    try:
        report = await run_conformance(Modest(store=tmp_path / "store"), checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    outcomes = {one.id: one.outcome for one in report.results}
    assert outcomes == {"capabilities.unclaimed": Outcome.FAILED, "capabilities.unclaimed-images": Outcome.NOT_RUN}
