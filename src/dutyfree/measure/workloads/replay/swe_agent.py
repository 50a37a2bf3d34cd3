"""SWE-agent's `.traj` files: under `trajectory`, or in demonstrations under `history`, one entry for each action.

The shell is one session, whose directory is recorded with each action; exit codes and times are not.
SWE-agent's own tools (`open`, `edit` ...) are programs that it puts into its containers: they are left out.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dutyfree.measure.workloads.replay.recording import Recording, Step, directory_of, table_of, tables_of, text_of

_OWN_TOOL: Final = re.compile(
    r"open|goto|scroll_(up|down)|create|edit|insert|append|search_(dir|file)|find_file|filemap|submit|skip|undo_edit"
    r"|str_replace_editor|view_image|review_on_submit_m|summarize_conversation|exit_\w+|connect_\w+|debug_\w+"
    r"|decompile|disassemble"
)
_SHELL_TOOLS: Final = ("bash", "execute_bash")
_LEFT_OUT: Final = "tools of the agent's own"


def recognises(document: Any) -> bool:
    """Whether a JSON document is in this format."""
    return isinstance(document, dict) and any(isinstance(document.get(key), list) for key in ("trajectory", "history"))


def read(document: Any) -> Recording:
    """The commands of the recording."""
    whole = table_of(document)
    recording = Recording()
    cwd: str | None = None
    for entry in tables_of(whole.get("trajectory")) or tables_of(whole.get("history")):
        line = text_of(entry.get("action")).strip("\n")
        is_before, directory = _state(entry)
        cwd = directory or cwd if is_before else cwd
        # A demonstration that was shown to the model was not run.
        if line.strip() and not entry.get("is_demo"):
            if _went_to_a_shell(entry, line):
                recording.add(Step(line, cwd=cwd))
            else:
                recording.leave_out(_LEFT_OUT)
        cwd = directory or cwd
    return recording


def _went_to_a_shell(entry: dict[str, Any], line: str) -> bool:
    calls = tables_of(entry.get("tool_calls"))
    if calls:
        return all(table_of(call.get("function")).get("name") in _SHELL_TOOLS for call in calls)
    return not _OWN_TOOL.fullmatch(line.split()[0])


def _state(entry: dict[str, Any]) -> tuple[bool, str | None]:
    """Where the shell was, and whether before the action. Up to 0.7 that was so, and the state is JSON in a string."""
    state = entry.get("state")
    if not isinstance(state, str):
        return False, directory_of(table_of(state).get("working_dir"))
    try:
        return True, directory_of(table_of(json.loads(state)).get("working_dir"))
    except (ValueError, RecursionError):
        return True, None
