"""Loads a recording as a workload. The format is recognised by the content, or named by the user."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.images.files import open_regular
from dutyfree.measure.workloads.replay import atif, mini_swe_agent, plain, swe_agent
from dutyfree.measure.workloads.replay.recording import scripted
from dutyfree.measure.workloads.workload import ScriptedAction, Workload
from dutyfree.tables import Table

MAX_FILE_BYTES: Final = 64 * 1024**2
"""Agents repeat the whole conversation in each step, and so do some recordings."""
PLAIN: Final = "jsonl"
_BY_CONTENT: Final[dict[str, ModuleType]] = {"atif": atif, "mini-swe-agent": mini_swe_agent, "swe-agent": swe_agent}
"""In the order in which they are tried."""
FORMATS: Final = (*_BY_CONTENT, PLAIN)
_SUFFIXES: Final = re.compile(r"(\.traj)?\.(json|jsonl|traj)$")


def load_recording(path: Path | str, format_name: str | None = None) -> Workload:
    """The workload that repeats a recording: its commands in their order, and nothing else.

    Where exit codes were recorded, the same are expected; outputs are not, as they hold dates, addresses and times.
    Raises InvalidRequest for a file that is not there or too large, is in no format that is known (or not in the one
    that was named), or in which nothing went to a shell.
    """
    path = Path(path)
    if format_name is not None and format_name not in FORMATS:
        raise InvalidRequest(f"there is no format {format_name!r:.80}", hint=f"use {', '.join(FORMATS)}")
    text = _content(path)
    document = _document(text)
    found = format_name or _format_of(document, path)
    actions, title = _actions(found, document, text, path)
    if not actions:
        raise InvalidRequest(f"{path}: nothing in it went to a shell that could be run again ({title})")
    return Workload(_SUFFIXES.sub("", path.name) or path.name, title, opening=actions)


def _content(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = bytearray()
            while len(data) <= MAX_FILE_BYTES and (piece := file.read(MAX_FILE_BYTES + 1 - len(data))):
                data += piece
    except OSError as error:
        raise InvalidRequest(f"cannot read the recording {str(path)!r}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path}: a recording has at most {MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path}: not UTF-8: {error}") from error


def _document(text: str) -> Any:
    """The whole text as JSON; None if it is not one document."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _format_of(document: Any, path: Path) -> str:
    for name, module in _BY_CONTENT.items():
        if module.recognises(document):
            return name
    if document is None or (isinstance(document, dict) and "run" in document):
        return PLAIN  # several documents, one on each line; or a single line
    raise InvalidRequest(f"{path}: in no format of recordings that is known", hint=f"they are {', '.join(FORMATS)}")


def _actions(name: str, document: Any, text: str, path: Path) -> tuple[tuple[ScriptedAction, ...], str]:
    if name == PLAIN:
        actions = plain.read(text, str(path))
        return actions, f"{len(actions)} recorded commands"
    module = _BY_CONTENT[name]
    if not module.recognises(document):
        raise InvalidRequest(f"{path}: this is not a recording in the format {name!r}")
    recording = Table(document, str(path)).checked(None, lambda: module.read(document))
    steps = (scripted(number, step) for number, step in enumerate(recording.steps, start=1))
    return tuple(steps), recording.title(name)
