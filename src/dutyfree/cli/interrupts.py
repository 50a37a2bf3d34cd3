"""Commands that a signal can end at any moment, after they have cleaned up."""

from __future__ import annotations

import signal
from collections.abc import Coroutine
from typing import Any

from dutyfree.cli.outcome import ExitCode


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of `work`. Ctrl-C (which raises KeyboardInterrupt) and TERM cancel it and wait for its end."""
    import asyncio

    async def cancelled_by_signals() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError:
        return ExitCode.SIGNALLED + signal.SIGTERM
