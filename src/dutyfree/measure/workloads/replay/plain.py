"""Plain recordings, for agents that have no format of their own: one JSON object on each line.

An object has the keys of an action in a workload's file, and only `run` is needed: `{"run": "ls -l"}`,
`{"run": ["git", "status"], "cwd": "/repo", "expect": {"exit_code": 0}, "think_s": 2.5}`.
"""

from __future__ import annotations

import json

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads.actions import read_action
from dutyfree.measure.workloads.replay.kinds import kind_of
from dutyfree.measure.workloads.replay.recording import MAX_STEPS, word_of
from dutyfree.measure.workloads.workload import Expectation, ScriptedAction
from dutyfree.model import Action, Command
from dutyfree.tables import Table


def read(text: str, where: str) -> tuple[ScriptedAction, ...]:
    """The actions of the recording `where`. Raises InvalidRequest, which names the line and, where it can, the key."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if len(lines) > MAX_STEPS:
        raise InvalidRequest(f"{where}: a recording of more than {MAX_STEPS} commands is not taken")
    return tuple(_action(index, line, f"{where}, line {number}") for index, (number, line) in enumerate(lines, start=1))


def _action(index: int, line: str, where: str) -> ScriptedAction:
    try:
        content = tables.table(json.loads(line))
        json.dumps(content, ensure_ascii=False).encode()  # JSON has halves of characters, which no process can be given
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: not JSON: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}") from error

    def otherwise(command: Command) -> ScriptedAction:
        action = Action(command)
        words = command if isinstance(command, str) else " ".join(command)
        name = f"{index:03d}-{word_of(command)}"
        return ScriptedAction(name, kind_of(words), action, Expectation(exit_code=None))

    return read_action(Table(content, where), {}, own="think_s", otherwise=otherwise)
