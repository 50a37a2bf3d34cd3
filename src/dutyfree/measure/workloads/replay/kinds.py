"""Guesses the purpose of a command from its words, because recordings do not contain it."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.measure.workloads.workload import ActionKind

_TEST: Final = re.compile(
    r"\b(pytest|tox|nox|unittest|runtests(\.py)?|manage\.py test|bin/test|(npm|yarn|pnpm)( run)? test|go test"
    r"|cargo test|make (check|test)|mvn test|gradle\w* test|ctest|jest|rspec)\b"
)
_EDIT: Final = re.compile(
    r"(^|[\s;&|(])(sed\s+(-[a-zA-Z]*\s+)*-[a-zA-Z]*i|patch\b|git\s+(apply|checkout|restore|stash|revert)\b|tee\b"
    r"|mv\b|cp\b|rm\b|mkdir\b|touch\b|chmod\b)"
)
_WRITES: Final = re.compile(r"(?<![0-9&>=-])>{1,2}\s*(?!/dev/null|&)[\w./~$\"'-]")
_LOOKS: Final = re.compile(
    r"^\s*(ls|cat|head|tail|less|more|grep|egrep|rg|ag|find|fd|nl|sed|awk|wc|tree|file|stat|pwd|du|which|diff|env"
    r"|git\s+(-\S+\s+)*(log|show|diff|status|blame|grep|ls-files|branch))\b"
)
_FIRST: Final = re.compile(r"^(\s*(cd\s+\S+|export\s+\S+|set\s+-\w+)\s*(&&|;|\n)\s*)+")


def kind_of(line: str) -> ActionKind:
    """A test if a test runner is named, an edit if something is written, inspection if it begins with looking."""
    start = line[:4096]  # the words that decide come early; what follows may be a whole file
    if _TEST.search(start) and not _WRITES.search(start):
        return ActionKind.TEST
    if _EDIT.search(start) or _WRITES.search(start):
        return ActionKind.EDIT
    return ActionKind.INSPECT if _LOOKS.match(_FIRST.sub("", start)) else ActionKind.COMMAND
