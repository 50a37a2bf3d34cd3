"""mini-swe-agent's trajectories (`*.traj.json`): messages, with each command in the one that an assistant wrote.

Two generations: in the first, the command is a fenced block, and the exit code is in the next message's text; in the
second, both are in the messages' `extra`, and each message that came from a model or a shell has its time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from dutyfree.measure.workloads.replay.recording import (
    Recording,
    Step,
    code_of,
    directory_of,
    environment_of,
    seconds_of,
    table_of,
    tables_of,
    text_of,
    written_code_of,
)

_FENCED: Final = re.compile(r"```(?:bash|sh|mswea_bash_command)[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
_CUT_OFF: Final = "timed out and has been killed"


def recognises(document: Any) -> bool:
    """Whether a JSON document is in this format."""
    if isinstance(document, list):
        return bool(document) and all(isinstance(each, dict) and "role" in each for each in document)
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        return False
    return text_of(document.get("trajectory_format")).startswith("mini-swe-agent") or "info" in document


def read(document: Any) -> Recording:
    """The commands of the recording."""
    whole = {"messages": document} if isinstance(document, list) else table_of(document)
    settings = table_of(table_of(table_of(whole.get("info")).get("config")).get("environment"))
    cwd, env = directory_of(settings.get("cwd")), environment_of(settings.get("env"))
    messages = tables_of(whole.get("messages"))
    recording = Recording()
    seen_s: float | None = None
    for index, message in enumerate(messages):
        at_s = seconds_of(table_of(message.get("extra")).get("timestamp"))
        if message.get("role") == "assistant" or "actions" in table_of(message.get("extra")):
            lines = _lines(message)
            answers = _answers(messages[index + 1 : index + 1 + len(lines)], len(lines))
            think_s = at_s - seen_s if at_s is not None and seen_s is not None else 0.0
            for line, answer in zip(lines, answers, strict=True):
                code, ended = _outcome(answer)
                recording.add(Step(line, code, cwd, env, max(think_s, 0.0)), ended=ended)
                think_s = 0.0  # several commands of one answer come at once
        seen_s = at_s if at_s is not None else seen_s
    return recording


def _lines(message: dict[str, Any]) -> list[str]:
    actions = table_of(message.get("extra")).get("actions")
    if actions is not None:
        return [text_of(action.get("command")) for action in tables_of(actions)]
    blocks = _FENCED.findall(text_of(message.get("content")))
    return [str(blocks[0])] if len(blocks) == 1 else []  # anything else was refused, and never run


def _answers(messages: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Those of the messages that answer `count` commands, in their order; empty ones where there are none."""
    answers: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") not in ("user", "tool") and message.get("type") != "function_call_output":
            break
        answers.append(message)
    return answers + [{}] * (count - len(answers))


def _outcome(answer: dict[str, Any]) -> tuple[int | None, bool]:
    """The exit code, where there is one, and whether the command ended by itself."""
    extra, content = table_of(answer.get("extra")), text_of(answer.get("content"))
    if text_of(extra.get("exception_info")) or _CUT_OFF in content:
        return None, False
    code = code_of(extra.get("returncode"))
    return written_code_of(content) if code is None else code, True
