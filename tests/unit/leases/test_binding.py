"""What a lease brings with it: where it is to be found, and where it is not."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import logging
import pickle
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import FileFailed, InvalidRequest, Unsupported
from dutyfree.leases.binding import (
    MAX_ENTRIES,
    MAX_ENVIRONMENT_BYTES,
    MAX_FILES,
    MAX_FILES_BYTES,
    Binding,
    MaskedEnvironment,
    bind,
)
from dutyfree.leases.fence import Fence
from dutyfree.leases.secret import Secret
from dutyfree.leases.table import Lease
from dutyfree.model import Action, Capability, SandboxSpec, Writes
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.process import ProcessSubstrate
from dutyfree.trace import SpanRecorder
from support.boxes import boxed

LEASE = Lease("lease-1", "box", "ann", 1, 1e9)
HUSH = "hush-0123456789-hush"
HUSH_FILE = "hush-9876543210-hush"


def shown(thing: object) -> str:
    """All that printing, formatting and logging make of it."""
    record = logging.LogRecord("name", logging.INFO, "path", 1, "%s %r", (thing, thing), None)
    return " ".join([repr(thing), str(thing), f"{thing}", f"{thing!s:>5}", f"{thing}", record.getMessage()])


@pytest.mark.parametrize("value", [HUSH, HUSH.encode(), Secret(HUSH)])
def test_a_secret_shows_where_it_is_asked_for_and_nowhere_else(value: str | bytes | Secret) -> None:
    secret = Secret(value)
    assert secret.reveal() == HUSH
    assert secret.reveal_bytes() == HUSH.encode()
    assert HUSH not in shown(secret)
    assert HUSH not in shown([secret, {"a": secret}])
    assert copy.deepcopy(secret) is copy.copy(secret) is secret
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(secret, protocol)
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert not hasattr(secret, "__dict__")


def test_a_secret_that_is_no_text_is_refused_without_being_shown() -> None:
    no_text = HUSH.encode() + b"\xff"
    with pytest.raises(InvalidRequest) as caught:
        Binding(secrets={"S": Secret(no_text)})
    assert "hush" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(InvalidRequest, match="not int"):
        Secret(5)  # type: ignore[arg-type]


def test_neither_a_binding_nor_what_is_made_of_it_shows_secrets() -> None:
    binding = Binding(
        env={"A": "plain"}, secrets={"S": HUSH}, files={"/a": b"x"}, secret_files={"/dev/shm/f": HUSH_FILE}
    )
    environment = binding.environment(LEASE.id, LEASE.owner)
    action = Action("true", env=environment.under({"B": "own"}))
    for thing in (binding, environment, action, dataclasses.replace(action, cwd="/"), dataclasses.replace(binding)):
        assert "hush" not in shown(thing)
        with pytest.raises(TypeError):
            pickle.dumps(thing)
    assert "plain" in repr(binding)
    assert "plain" in repr(action)
    assert action.env["S"] == HUSH


def test_what_an_action_says_itself_wins() -> None:
    binding = Binding(env={"A": "bound"}, secrets={"S": HUSH})
    environment = binding.environment(LEASE.id, LEASE.owner)
    assert dict(environment) == {"A": "bound", "S": HUSH, "DUTYFREE_LEASE": "lease-1", "DUTYFREE_OWNER": "ann"}
    own = environment.under({"A": "own", "S": "also-secret"})
    assert (own["A"], own["S"]) == ("own", "also-secret")
    assert "also-secret" not in repr(own)
    assert environment["A"] == "bound"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.sets(st.text(max_size=5)))
def test_masking_hides_exactly_the_secret_values(entries: dict[str, str], secret: set[str]) -> None:
    expected = {name: "***" if name in secret else value for name, value in entries.items()}
    assert repr(MaskedEnvironment(entries, secret)) == repr(expected)


def test_a_binding_cannot_be_changed_behind_its_back() -> None:
    env = {"A": "1"}
    binding = Binding(env=env)
    env["A"] = "2"
    assert binding.env["A"] == "1"
    with pytest.raises(TypeError):
        binding.env["A"] = "3"  # type: ignore[index]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"env": {"A=": "x"}}, "cannot be represented"),
        ({"env": {"": "x"}}, "cannot be represented"),
        ({"secrets": {"S": "hush\0"}}, "cannot be represented"),
        ({"env": {"DUTYFREE_OWNER": "me"}}, "lease's own"),
        ({"secrets": {"DUTYFREE_X": "hush"}}, "lease's own"),
        ({"env": {"A": "1"}, "secrets": {"A": "hush"}}, "among the secrets"),
        ({"env": {f"A{number}": "" for number in range(MAX_ENTRIES + 1)}}, "entries"),
        ({"secrets": {"S": "hush" * (MAX_ENVIRONMENT_BYTES // 4)}}, "entries"),
        ({"files": {"relative": b""}}, "absolute path"),
        ({"files": {"/a/../b": b""}}, "absolute path"),
        ({"files": {"/a/": b""}}, "absolute path"),
        ({"files": {"/": b""}}, "absolute path"),
        ({"files": {"/a\0": b""}}, "absolute path"),
        ({"files": {"/" + "a" * 5000: b""}}, "characters"),
        ({"secret_files": {"/tmp/key": "hush"}}, "below /dev/shm"),
        ({"secret_files": {"/dev/shm": "hush"}}, "below /dev/shm"),
        ({"secret_files": {"/dev/shm/../../tmp/key": "hush"}}, "absolute path"),
        ({"secret_files": {"/dev/shmother": "hush"}}, "below /dev/shm"),
        ({"files": {"/dev/shm/a": b""}, "secret_files": {"/dev/shm/a": "hush"}}, "among the secret files"),
        ({"files": {f"/a{number}": b"" for number in range(MAX_FILES + 1)}}, "files of"),
        ({"files": {"/a": bytes(MAX_FILES_BYTES)}, "secret_files": {"/dev/shm/a": "hush"}}, "files of"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, dict[str, str]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        Binding(**wrong)  # type: ignore[arg-type]
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[GuardedSubstrate]:
    async with GuardedSubstrate(CellSubstrate(store=tmp_path / "store")) as substrate:
        yield substrate


async def test_files_are_written_beside_each_other(cells: GuardedSubstrate) -> None:
    box = await cells.create(SandboxSpec())
    files = {f"/srv/{number}": str(number).encode() for number in range(MAX_FILES - 1)}
    await bind(box, Binding(files=files, secret_files={"/dev/shm/s": HUSH}), cells.capabilities)
    for path, content in files.items():
        assert await box.files.read(path) == content
        assert (await box.files.stat(path)).mode & 0o777 == 0o644
    assert await box.files.read("/dev/shm/s") == HUSH.encode()
    assert (await box.files.stat("/dev/shm/s")).mode & 0o777 == 0o600


async def test_without_files_the_sandbox_is_not_spoken_to() -> None:
    async with GuardedSubstrate(ProcessSubstrate()) as substrate:
        box = await substrate.create(SandboxSpec())
        await box.destroy()  # any call would raise
        await bind(box, Binding(env={"A": "1"}, secrets={"S": HUSH}), frozenset())


async def test_a_file_that_cannot_be_written_is_reported(cells: GuardedSubstrate) -> None:
    box = await cells.create(SandboxSpec())
    with pytest.raises(FileFailed) as caught:
        await bind(box, Binding(files={"/tmp": b"", "/srv/a": b""}), cells.capabilities)
    assert "/tmp" in str(caught.value)


async def test_secret_files_need_sandboxes_that_are_kept_apart(cells: GuardedSubstrate) -> None:
    box = await cells.create(SandboxSpec())
    with pytest.raises(Unsupported):
        await bind(box, Binding(secret_files={"/dev/shm/s": HUSH}), frozenset({Capability.FILES}))
    assert await box.files.list("/dev/shm") == []


# On cells: the secrets are searched for, byte by byte.

SECRETS = Binding(env={"A": "plain"}, secrets={"S": HUSH}, secret_files={"/dev/shm/keys/f": HUSH_FILE})
PIECES = (HUSH.encode(), HUSH_FILE.encode())


def found_below(directory: Path) -> list[str]:
    """The files that have a secret in their content or their name."""
    found = []
    for path in directory.rglob("*"):
        if any(piece.decode() in path.name for piece in PIECES):
            found.append(str(path))
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [str(path) for piece in PIECES if piece in content]
    return found


# The brackets keep the search from finding itself.
SEARCH = (
    "grep -rlaE '(0123456789|9876543210)-hus[h]' "
    "/dev/shm /tmp /var/tmp /root /home /srv /etc /run /opt /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true"
)


@pytest.mark.parametrize("upper", list(Writes))
async def test_on_a_cell_secrets_are_in_no_snapshot_layer_span_or_later_lease(
    cells: GuardedSubstrate, tmp_path: Path, upper: Writes
) -> None:
    recorder = SpanRecorder()
    inner = await cells.create(SandboxSpec(writes=upper), recorder)
    await bind(inner, SECRETS, cells.capabilities)
    fence = Fence(LEASE.id)
    box = boxed(inner, fence, LEASE, SECRETS, cells.capabilities)
    seen = await box.run("echo $S; cat /dev/shm/keys/f; echo work > /srv/work")
    assert seen.text == f"{HUSH}\n{HUSH_FILE}"
    async with box.session() as session, box.stream("sleep 30"):
        await session.run("sleep 30 & echo $S")
        assert "/dev/shm/keys/f" in (await session.run(SEARCH)).text  # what searches, finds
        async with await box.snapshot() as snapshot:  # also while processes have the secret
            other = await cells.create(SandboxSpec(writes=upper, image=snapshot.image), recorder)
            assert (await other.run(Action(f"cat /srv/work; {SEARCH}"))).text == "work\n"
            image = await snapshot.save()
    assert image.layers
    assert (tmp_path / "store").is_dir()
    assert found_below(tmp_path) == []

    fence.end()
    assert await fence.drained(5.0)
    await inner.reset()
    assert (await inner.run(Action(f"ls -A /dev/shm /srv; {SEARCH}"))).text == "/dev/shm:\n\n/srv:\n"
    assert not any(piece.decode() in repr(recorder.spans) for piece in PIECES)


async def test_on_a_cell_many_leases_in_turn_see_their_own_alone(cells: GuardedSubstrate) -> None:
    inner = await cells.create(SandboxSpec())
    for number in range(5):
        lease = Lease(f"lease-{number}", inner.id, f"owner-{number}", number, 1e9)
        mine = f"{HUSH}-{number}"
        binding = Binding(secrets={"S": mine, f"S{number}": mine}, secret_files={f"/dev/shm/{number}": mine})
        await bind(inner, binding, cells.capabilities)
        fence = Fence(lease.id)
        box = boxed(inner, fence, lease, binding, cells.capabilities)
        line = "echo $DUTYFREE_OWNER; env | grep -c ^S; ls /dev/shm; cat /dev/shm/*"
        seen = await asyncio.gather(*(box.run(line) for _ in range(3)))
        assert {each.text for each in seen} == {f"owner-{number}\n2\n{number}\n{mine}"}
        fence.end()
        assert await fence.drained(5.0)
        await inner.reset()
