"""The journal of a sandbox's egress: every connection, allowed or refused."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from dutyfree.model.egress import EgressRecord

MAX_RECORDS: Final = 10_000
"""Of allowed connections, and again of refused ones: refusals cannot push allowed connections out."""
MAX_NAME_CHARACTERS: Final = 253
OPEN: Final = "open"


class Entry:
    """One connection while it lasts."""

    __slots__ = (
        "_start_ns",
        "address",
        "allowed",
        "duration_s",
        "end",
        "how",
        "name",
        "port",
        "received_bytes",
        "rule",
        "sent_bytes",
        "start_s",
    )

    def __init__(self, name: str, port: int, how: str) -> None:
        shown = name[:MAX_NAME_CHARACTERS]
        # A program chose it, and people print it: no line feeds, no control sequences of terminals.
        self.name = shown if shown.isprintable() else repr(shown)
        self.port = port
        self.how = how
        self.allowed = False
        self.rule = ""
        self.address = ""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.start_s = time.time()
        self.duration_s = 0.0
        self.end = OPEN
        self._start_ns = time.monotonic_ns()

    def finish(self, end: str) -> None:
        """Say how it ended; the first to say so is right."""
        if self.end is OPEN:
            self.end = end
            self.duration_s = (time.monotonic_ns() - self._start_ns) / 1e9

    def record(self) -> EgressRecord:
        """The entry as a value, as it is now."""
        lasted_s = (time.monotonic_ns() - self._start_ns) / 1e9 if self.end is OPEN else self.duration_s
        return EgressRecord(
            self.name,
            self.port,
            self.how,
            self.allowed,
            self.rule,
            self.address,
            self.sent_bytes,
            self.received_bytes,
            self.start_s,
            lasted_s,
            self.end,
        )


class Journal:
    """The last `MAX_RECORDS` allowed and the last `MAX_RECORDS` refused connections."""

    def __init__(self) -> None:
        self._allowed: deque[Entry] = deque(maxlen=MAX_RECORDS)
        self._refused: deque[Entry] = deque(maxlen=MAX_RECORDS)
        self.dropped = 0
        """How many older records were dropped."""

    def allow(self, entry: Entry, rule: str) -> None:
        """Record a connection that the rules allow."""
        entry.allowed, entry.rule = True, rule
        self._add(self._allowed, entry)

    def refuse(self, entry: Entry, reason: str) -> None:
        """Record a refusal, also of a connection that was allowed before."""
        was_allowed, entry.allowed, entry.rule = entry.allowed, False, reason
        entry.finish("refused")
        if not was_allowed:
            self._add(self._refused, entry)

    def records(self) -> list[EgressRecord]:
        """All records, oldest first."""
        return sorted((each.record() for each in (*self._allowed, *self._refused)), key=lambda each: each.start_s)

    def _add(self, entries: deque[Entry], entry: Entry) -> None:
        self.dropped += len(entries) == MAX_RECORDS
        entries.append(entry)
