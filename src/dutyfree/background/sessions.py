"""Kept sessions: shells of a sandbox that outlive the call which opened them, and are found again by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from dutyfree.checked import text
from dutyfree.contract import Session
from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Observation

MAX_SESSIONS: Final = 64
"""The most kept sessions of one sandbox."""
MAX_NAME_CHARACTERS: Final = 128


class SessionTable:
    """The kept sessions of one sandbox, by name. A shell that has ended is forgotten, and its name is free again."""

    def __init__(self) -> None:
        self._sessions: dict[str, KeptSession | None] = {}
        """None while a session is being opened: its name is taken already."""

    async def keep(self, name: str, open_session: Callable[[], Awaitable[Session]]) -> Session:
        """Open a session under a new name. Raises InvalidRequest if one of that name lives, and CapacityError."""
        name = check_name(name)
        self._forget_ended()
        if name in self._sessions:
            hint = "kept_session finds it; close it to open another one under its name"
            raise InvalidRequest(f"there is a session {name!r} in this sandbox already", hint=hint)
        if len(self._sessions) >= MAX_SESSIONS:
            raise CapacityError(f"{MAX_SESSIONS} sessions are kept in this sandbox already", hint="close one of them")
        self._sessions[name] = None
        try:
            session = KeptSession(await open_session())
        except BaseException:
            self._sessions.pop(name, None)
            raise
        self._sessions[name] = session
        return session

    def get(self, name: str) -> Session:
        """The session of that name. Raises InvalidRequest if there is none, or if its shell has ended."""
        self._forget_ended()
        session = self._sessions.get(check_name(name))
        if session is None:
            raise InvalidRequest(f"there is no session {name!r} in this sandbox", hint="open one with keep_session")
        return session

    def _forget_ended(self) -> None:
        ended = [name for name, session in self._sessions.items() if session is not None and not session.alive]
        for name in ended:
            del self._sessions[name]


class KeptSession(Session):
    """A session that frees its name when it is closed."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner
        self._is_closed = False

    @property
    def alive(self) -> bool:
        return not self._is_closed and self._inner.alive

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        return await self._inner.run(line, timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)

    async def interrupt(self) -> None:
        await self._inner.interrupt()

    async def close(self) -> None:
        self._is_closed = True
        await self._inner.close()


def check_name(name: str) -> str:
    """The name of a kept session. Raises InvalidRequest."""
    if not 1 <= len(text("the name of a session", name)) <= MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"the name of a session has {len(name)} characters; 1 to {MAX_NAME_CHARACTERS} are allowed"
        )
    return name
