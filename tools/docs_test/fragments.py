"""Runs the Python fragments of one page, in one namespace and on one event loop, as in a reader's interpreter.

A program by itself, for the page's virtual environment: it reads one JSON object a line from its standard input, and
writes one to the descriptor in its first argument. `enter(manager)` is there for hidden blocks: it enters an
asynchronous context manager until the end of the page.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import os
import sys
import traceback
from types import CodeType
from typing import Any


def run(runner: asyncio.Runner, code: CodeType, names: dict[str, Any]) -> None:
    """Only code that awaits runs on the loop: `dutyfree.sync` is for threads without one."""
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(eval(code, names))
    else:
        exec(code, names)


def main() -> None:
    replies = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    stack = contextlib.AsyncExitStack()
    names: dict[str, Any] = {"__name__": "page", "enter": stack.enter_async_context}
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            order = json.loads(line)
            text = "\n" * (order["line"] - 1) + order["text"]  # tracebacks then name the page and its line
            try:
                code = compile(text, order["page"], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                run(runner, code, names)
                problem = ""
            except BaseException as error:
                kept = error.__traceback__
                while kept is not None and kept.tb_frame.f_code.co_filename != order["page"]:
                    kept = kept.tb_next
                problem = "".join(traceback.format_exception(type(error), error, kept or error.__traceback__))
            sys.stdout.flush()
            sys.stderr.flush()
            print(json.dumps(problem), file=replies, flush=True)
        runner.run(stack.aclose())


if __name__ == "__main__":
    main()
