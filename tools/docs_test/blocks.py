"""What the blocks of a page are, and what is declared about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SHELL: Final = frozenset({"sh", "bash", "console"})
DATA: Final = frozenset({"toml", "json"})
OUTPUT: Final = frozenset({"", "text"})
MARKS: Final = frozenset({"skip", "needs", "exit", "until", "file", "output", "name"})
PAGE_MARKS: Final = frozenset({"extras", "clone", "engines"})

_COMMENT = re.compile(r"<!-- docs-test: (.*?)\s*-->", re.DOTALL)
_FENCE = re.compile(r"( *)```([\w-]*)")
_PROGRAM = re.compile(r'^(asyncio\.run\(|if __name__ == "__main__":)', re.MULTILINE)


class Mistake(Exception):
    """A page declares something that means nothing."""


@dataclass(frozen=True)
class Block:
    """One block of a page: `line` is the number of its first line of text."""

    page: Path
    line: int
    language: str
    text: str
    hidden: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_code(self) -> bool:
        """Whether there is something to run or to parse, in contrast to output that is only shown."""
        return self.language not in OUTPUT or "output" in self.marks

    @property
    def is_program(self) -> bool:
        """Whether this Python is run by itself, as a file, in contrast to a fragment of the page's program."""
        return self.language == "python" and _PROGRAM.search(self.text) is not None


@dataclass(frozen=True)
class Page:
    path: Path
    blocks: tuple[Block, ...]
    marks: frozenset[str]


def parse(path: Path, text: str) -> Page:
    """The blocks of a page, top to bottom. Raises Mistake."""
    blocks: list[Block] = []
    page_marks: set[str] = set()
    pending: dict[str, str] = {}
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if line.startswith("<!-- docs-test:"):
            comment = _whole_comment(path, number, line, lines)
            key, _, value = comment.partition("\n")
            if key in {"python", "sh"}:
                blocks.append(Block(path, number + 1, key, value + "\n", hidden=True))
                continue
            key, _, value = (part.strip() for part in comment.partition(":"))
            if key == "page" and set(value.split()) <= PAGE_MARKS:
                page_marks |= set(value.split())
            elif key == "repeat" and value:
                blocks.append(Block(path, number, "repeat", value, hidden=True))
            elif key in MARKS and (value or key == "output"):
                pending[key] = value
            else:
                raise Mistake(f"{path}:{number}: cannot read {comment!r}")
        elif fence := _FENCE.match(line):
            blocks.append(_fenced(path, number, fence, lines, pending))
            pending = {}
        elif line.strip() and pending:
            raise Mistake(f"{path}:{number}: {', '.join(pending)} must stand directly above a block")
    return Page(path, tuple(blocks), frozenset(page_marks))


def _whole_comment(path: Path, number: int, line: str, lines: Iterator[tuple[int, str]]) -> str:
    while "-->" not in line:
        try:
            line += "\n" + next(lines)[1]
        except StopIteration:
            raise Mistake(f"{path}:{number}: this comment has no end") from None
    found = _COMMENT.fullmatch(line)
    if found is None:
        raise Mistake(f"{path}:{number}: cannot read {line!r}")
    return found[1]


def _fenced(
    path: Path, number: int, fence: re.Match[str], lines: Iterator[tuple[int, str]], marks: Mapping[str, str]
) -> Block:
    indent, language = fence.groups()
    if language not in SHELL | DATA | OUTPUT | {"python"} and "skip" not in marks:
        raise Mistake(f"{path}:{number}: blocks of {language!r} cannot be run: say why, by a skip")
    text: list[str] = []
    for _, line in lines:
        if line.strip() == "```":
            return Block(path, number + 1, language, "\n".join(text) + "\n", marks=dict(marks))
        text.append(line.removeprefix(indent))
    raise Mistake(f"{path}:{number}: this block has no end")


def typed(block: Block) -> str:
    """What a reader types: a console block shows prompts, and output between them."""
    if block.language != "console":
        return block.text
    return "".join(line.removeprefix("$ ") + "\n" for line in block.text.splitlines() if line.startswith("$ "))


def fits(shown: str, printed: str) -> bool:
    """Whether a program printed what the page shows. `...` stands for any text, spaces at line ends for nothing."""
    tidy = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    wanted = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, tidy, re.DOTALL) is not None
