"""The documentation's blocks: what is read from a page, and that a block which does not do what it shows is found."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from docs_test.blocks import Block, Mistake, fits, parse
from docs_test.running import Reader, Result


def blocks_of(text: str) -> tuple[Block, ...]:
    return parse(Path("page.md"), text).blocks


def follow(directory: Path, text: str, present: Sequence[str] = ()) -> list[Result]:
    path = directory / "page.md"
    path.write_text(text)
    page = parse(path, text)
    named = {block.marks["name"]: block for block in page.blocks if "name" in block.marks}
    return list(Reader(directory, dict(os.environ), Path(sys.executable), named, present.__contains__).follow(page))


def test_a_block_has_its_language_its_first_line_and_its_marks() -> None:
    [block] = blocks_of("# Title\n\n<!-- docs-test: exit: 3 -->\n\n```sh\nexit 3\n```\n")

    assert (block.language, block.line, block.text, block.marks) == ("sh", 6, "exit 3\n", {"exit": "3"})


def test_a_block_in_a_list_loses_its_indentation() -> None:
    [block] = blocks_of("- so:\n\n  ```toml\n  a = 1\n  ```\n")

    assert block.text == "a = 1\n"


def test_a_comment_with_code_is_a_hidden_block() -> None:
    [hidden, shown] = blocks_of("<!-- docs-test: python\nx = 1\ny = 2\n-->\n```python\nx\n```\n")

    assert (hidden.hidden, hidden.text, hidden.line) == (True, "x = 1\ny = 2\n", 2)
    assert not shown.hidden


@pytest.mark.parametrize(
    "text",
    [
        "<!-- docs-test: skip: -->\n```sh\n```\n",
        "<!-- docs-test: skip -->\n```sh\n```\n",
        "<!-- docs-test: exit: 1 -->\nwords between\n```sh\n```\n",
        "<!-- docs-test: unheard: of -->\n```sh\n```\n",
        "<!-- docs-test: page: unheard -->\n",
        "<!-- docs-test: python\nno end\n",
        "```sh\nno end\n",
        "```cobol\n```\n",
    ],
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(Mistake, match=r"page\.md:"):
        blocks_of(text)


def test_dots_in_shown_output_stand_for_anything() -> None:
    assert fits("took ... ms\n...\nend", "took 1.5 ms\na\nb\nend\n")
    assert not fits("took ... ms", "took 1.5 s")
    assert not fits("one", "one\ntwo")


def test_fragments_share_names_and_an_event_loop_and_shells_their_directory(tmp_path: Path) -> None:
    results = follow(
        tmp_path,
        """
<!-- docs-test: python
import asyncio
lock = asyncio.Lock()
-->
```python
async with lock:
    print("locked", asyncio.get_running_loop() is not None)
```
<!-- docs-test: output -->
```
locked True
```
```sh
mkdir sub && cd sub && export A=1
```
```console
$ echo $A ${PWD##*/}
1 sub
```
<!-- docs-test: output -->
```
1 sub
```
<!-- docs-test: file: sub/a.json -->
```json
{"a": 1}
{"b": 2}
```
```python
import asyncio

asyncio.run(asyncio.sleep(0))
```
""",
    )

    assert [result.problem for result in results] == [""] * 8
    assert (tmp_path / "sub/a.json").read_text() == '{"a": 1}\n{"b": 2}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\nfalse\ntrue\n```\n", "exit code 1, not 0"),
        ("```sh\ntrue | false | true\n```\n", "exit code 1, not 0"),
        ("<!-- docs-test: exit: 1 -->\n```sh\ntrue\n```\n", "exit code 0, not 1"),
        ("```python\n\nx = 1\nmissing\n```\n", 'page.md", line 4, in <module>\n    missing\n'),
        ("```python\nimport asyncio\nasyncio.run(missing)\n```\n", "name 'missing' is not defined"),
        ("```python\nimport os; os._exit(0)\n```\n", "the interpreter ended"),
        ("```sh\necho a\n```\n<!-- docs-test: output -->\n```\nb\n```\n", "other output than this:\na"),
        ("```toml\na = \n```\n", "line 1"),
        ("```json\n{]\n```\n", "Expecting"),
        ("<!-- docs-test: until: never -->\n```sh\necho something\n```\n", "without printing 'never'"),
        ("<!-- docs-test: repeat: unknown -->\n", "no block has the name unknown"),
    ],
)
def test_a_block_that_does_not_do_what_it_shows_is_found(text: str, said: str, tmp_path: Path) -> None:
    assert said in follow(tmp_path, text)[-1].problem


def test_a_command_that_does_not_end_is_interrupted_once_it_has_printed_the_text(tmp_path: Path) -> None:
    [result] = follow(tmp_path, "<!-- docs-test: until: ready -->\n```sh\necho ready; sleep 600\n```\n")

    assert result.problem == ""
    assert result.seconds < 60


def test_what_is_not_run_has_its_reason(tmp_path: Path) -> None:
    text = (
        "<!-- docs-test: skip: takes hours -->\n```sh\nfalse\n```\n"
        "<!-- docs-test: needs: there -->\n```sh\ntrue\n```\n"
        "<!-- docs-test: name: one -->\n<!-- docs-test: needs: there missing -->\n```sh\nfalse\n```\n"
        "<!-- docs-test: repeat: one -->\n```sh\nfalse\n```\n"
    )

    missing = "needs missing, not found here"
    reasons = ["takes hours", "", missing, missing, missing]
    assert [result.not_run for result in follow(tmp_path, text, ["there"])] == reasons
