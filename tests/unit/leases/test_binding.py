"""What a lease brings with it: where it is to be found, and where it is not."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.leases.binding import (
    MAX_ENTRIES,
    MAX_ENVIRONMENT_BYTES,
    MAX_FILES,
    MAX_FILES_BYTES,
    Binding,
    MaskedEnvironment,
    bind,
)
from dutyfree.leases.secret import Secret
from dutyfree.leases.table import Lease
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.substrates.process import ProcessSubstrate

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


async def test_without_files_the_sandbox_is_not_spoken_to() -> None:
    async with GuardedSubstrate(ProcessSubstrate()) as substrate:
        box = await substrate.create(SandboxSpec())
        await box.destroy()  # any call would raise
        await bind(box, Binding(env={"A": "1"}, secrets={"S": HUSH}), frozenset())
