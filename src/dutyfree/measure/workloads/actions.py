"""One action as a table, of a workload's file or of a line of a recording: strict, and each error names its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads.workload import ActionKind, Expectation, ScriptedAction
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Action, Command
from dutyfree.tables import Table

MAX_SHARE: Final = 1e6
MAX_THINK_S: Final = 3600.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_EXIT_CODE: Final = 255
_KEYS: Final = ("name", "kind", "run", "expect", "cwd", "env", "stdin", "timeout_s", "output_limit_bytes")


def read_action(
    table: Table, env: Mapping[str, str], own: str, otherwise: Callable[[Command], ScriptedAction] | None = None
) -> ScriptedAction:
    """The action in a table. `env` is the default environment; `own` is one more allowed key.

    Name, kind and expectation are required, unless `otherwise` gives their defaults. Raises
    InvalidRequest, which names the place.
    """
    table.allow(*_KEYS, own)
    command = table.required("run", _command)
    default = otherwise and table.checked("run", lambda: otherwise(command))
    name = default.name if default and "name" not in table.content else table.required("name", read_name)
    table.where = f"{table.where} ({name!r})"
    kind = default.kind if default and "kind" not in table.content else table.required("kind", _kind)
    expect = default.expect if default and "expect" not in table.content else _expectation(table)
    stdin = table.optional("stdin", tables.text)
    action = table.checked(
        None,
        lambda: Action(
            command,
            cwd=table.optional("cwd", _directory),
            env={**env, **(table.optional("env", tables.environment) or {})},
            stdin=None if stdin is None else stdin.encode(),
            timeout_s=table.optional("timeout_s", tables.positive) or DEFAULT_TIMEOUT_S,
            output_limit_bytes=table.optional("output_limit_bytes", _size) or DEFAULT_OUTPUT_LIMIT_BYTES,
        ),
    )
    weight, think_s = table.optional("weight", read_share), table.optional("think_s", _think)
    return ScriptedAction(name, kind, action, expect, weight or 1.0, think_s or 0.0)


def read_name(value: Any) -> str:
    """The name of a workload or an action."""
    if not _NAME.fullmatch(tables.text(value)):
        raise InvalidRequest(f"{value!r:.80} is no name: use letters, digits, '.', '_' and '-'")
    return str(value)


def read_share(value: Any) -> float:
    """The relative frequency with which something is drawn."""
    if tables.positive(value) > MAX_SHARE:
        raise InvalidRequest(f"a number up to {MAX_SHARE:g} is wanted, not {value!r:.80}")
    return float(value)


def _think(value: Any) -> float:
    if tables.positive(value) > MAX_THINK_S:
        raise InvalidRequest(f"at most {MAX_THINK_S:g} seconds are taken, not {value!r:.80}")
    return float(value)


def _expectation(table: Table) -> Expectation:
    inner = table.inner("expect", table.required("expect", tables.table))
    inner.allow("exit_code", "contains", "sha256")
    return Expectation(
        exit_code=inner.required("exit_code", _exit_code),
        contains=tuple(inner.optional("contains", _some_texts) or ()),
        sha256=inner.optional("sha256", _sha256) or "",
    )


def _kind(value: Any) -> ActionKind:
    if value not in tuple(ActionKind):
        raise InvalidRequest(f"{value!r:.80} is no kind of action", hint=f"use {', '.join(ActionKind)}")
    return ActionKind(value)


def _command(value: Any) -> Command:
    return tuple(tables.texts(value)) if isinstance(value, list) else tables.text(value)


def _directory(value: Any) -> str:
    if tables.text(value).startswith("~"):
        raise InvalidRequest("only a shell expands '~'", hint="begin the line with `cd ~/...`")
    return str(value)


def _exit_code(value: Any) -> int | None:
    if value == "any":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_EXIT_CODE:
        raise InvalidRequest(f"an exit code from 0 to {_MAX_EXIT_CODE}, or 'any', is wanted, not {value!r:.80}")
    return value


def _some_texts(value: Any) -> list[str]:
    if not all(tables.texts(value)):
        raise InvalidRequest("an empty text would match every output")
    return tables.texts(value)


def _sha256(value: Any) -> str:
    if not _SHA256.fullmatch(tables.text(value)):
        raise InvalidRequest(f"64 of the digits 0-9 and a-f are wanted, not {value!r:.80}")
    return str(value)


def _size(value: Any) -> int:
    if tables.positive(value) != int(value):
        raise InvalidRequest(f"a whole number is wanted, not {value!r:.80}")
    return int(value)
