"""ATIF, the Agent Trajectory Interchange Format of Harbor (`trajectory.json`), versions 1.x.

Agents call tools; those that are a shell are known by their names. A step has one time, so that the think time
here includes the execution of the step before. Few agents record exit codes: in `extra`, or at the beginning of an
observation. Steps that were copied from an earlier trajectory, and trajectories of subagents, are not
taken.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import Any, Final

from dutyfree.measure.workloads.replay.recording import (
    Recording,
    Step,
    code_of,
    directory_of,
    table_of,
    tables_of,
    text_of,
    written_code_of,
)

_SHELL: Final = re.compile(
    r"(execute_)?bash(_command)?|(local_)?shell|sh|terminal|exec(ute)?(_command)?|run_((shell_|bash_)?command|terminal_cmd)"
    r"|run_in_terminal",
    re.IGNORECASE,
)
_LEFT_OUT: Final = "tools of the agent's own"
_KEYS_NOT_TYPED: Final = ("C-", "M-", "\x03", "\x04", "\x1a", "\x1b")
_WRAPPERS: Final = (["bash", "-lc"], ["bash", "-c"], ["sh", "-lc"], ["sh", "-c"])


def recognises(document: Any) -> bool:
    """Whether a JSON document is in this format."""
    return isinstance(document, dict) and text_of(document.get("schema_version")).startswith("ATIF-v1")


def read(document: Any) -> Recording:
    """The commands of the recording."""
    recording = Recording()
    before_s: float | None = None
    for step in tables_of(table_of(document).get("steps")):
        at_s = _seconds(step.get("timestamp"))
        if step.get("source") == "agent" and step.get("is_copied_context") is not True:
            think_s = at_s - before_s if at_s is not None and before_s is not None else 0.0
            for call in tables_of(step.get("tool_calls")):
                taken = _step(call, step, max(think_s, 0.0))
                if taken is None:
                    recording.leave_out(_LEFT_OUT)
                else:
                    recording.add(taken)
                    think_s = 0.0  # several calls of one step come at once
        before_s = at_s if at_s is not None else before_s
    return recording


def _step(call: dict[str, Any], step: dict[str, Any], think_s: float) -> Step | None:
    arguments = table_of(call.get("arguments"))
    line = _line(arguments) if _SHELL.fullmatch(text_of(call.get("function_name"))) else None
    if line is None:
        return None
    places = (directory_of(arguments.get(key)) for key in ("workdir", "cwd", "working_directory"))
    return Step(line, _exit_code(call, step), next(filter(None, places), None), think_s=think_s)


def _line(arguments: dict[str, Any]) -> str | None:
    """The line that went to the shell; None for keys that are not a line."""
    for key in ("command", "cmd"):
        value = arguments.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return value[2] if len(value) == 3 and value[:2] in _WRAPPERS else shlex.join(value)
    keys = text_of(arguments.get("keystrokes"))
    if not keys.endswith("\n") or keys.startswith(_KEYS_NOT_TYPED):
        return None
    return keys.rstrip("\n")


def _exit_code(call: dict[str, Any], step: dict[str, Any]) -> int | None:
    calls, results = tables_of(step.get("tool_calls")), tables_of(table_of(step.get("observation")).get("results"))
    for result in results:
        is_named = result.get("source_call_id") is not None and result["source_call_id"] == call.get("tool_call_id")
        if is_named or len(calls) == len(results) == 1:
            extra = table_of(result.get("extra"))
            codes = [code_of(extra.get(key)) for key in ("exit_code", "returncode", "return_code")]
            codes.append(written_code_of(text_of(result.get("content"))))
            return next((code for code in codes if code is not None), None)
    return None


def _seconds(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(text_of(value)).timestamp()
    except (ValueError, OverflowError):
        return None
