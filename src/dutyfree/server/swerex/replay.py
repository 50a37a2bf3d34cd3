"""Answers by request id: a request that is repeated gets the answer of the first, and runs once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from dutyfree.server.swerex.sandboxes import Who

MAX_ANSWERS: Final = 1024
MAX_ID_CHARACTERS: Final = 128
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Of an answer that is kept after it was given."""


class Answers:
    """The last answers of this process. Those of another gateway are not known here."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[Who, str, str], asyncio.Future[tuple[int, bytes]]] = OrderedDict()

    async def once(
        self, who: Who, path: str, request_id: str | None, work: Callable[[], Awaitable[tuple[int, bytes]]]
    ) -> tuple[int, bytes]:
        """The status and body that `work` gives, or gave for the same path and id before."""
        if request_id is None or not 0 < len(request_id) <= MAX_ID_CHARACTERS:
            return await work()
        key = (who, path, request_id)
        if (before := self._answers.get(key)) is not None:
            await asyncio.wait({before})
            return await work() if before.cancelled() else before.result()
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        try:
            status, body = await work()
        except BaseException:
            self._answers.pop(key, None)
            answer.cancel()
            raise
        answer.set_result((status, body))
        if len(body) > MAX_ANSWER_BYTES:
            self._answers.pop(key, None)
        elif len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return status, body
