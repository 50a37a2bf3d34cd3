"""A client's RUN, read in one pass: what the node decides by, and the fields that go to the guest as they are.

Every action of every client comes through here, so that nothing is decoded which is not looked at.
"""

from __future__ import annotations

from dutyfree.errors import GuestMisbehaved
from dutyfree.wire.fields import number_field, pairs
from dutyfree.wire.messages import BOX_TAG, SharedEntries, env_fields

_MODE, _ENV, _FLAGS, _TIMEOUT, _CREDIT, _SESSION, _USER = 1, 3, 5, 6, 8, 11, 12
_REPLACED = frozenset((_ENV, _CREDIT, _SESSION, BOX_TAG))
"""Fields that the node writes anew."""
_NUMBERS = frozenset((_MODE, _FLAGS, _TIMEOUT, _CREDIT, _SESSION, BOX_TAG))


class ClientRun:
    """The request of a client. `env`, `session` and `credit` are set to those of the guest before it is sent."""

    __slots__ = ("_kept", "_numbers", "credit", "env", "own_env", "session", "user")

    def __init__(self, payload: bytes) -> None:
        """Raises GuestMisbehaved for what is no RUN."""
        self._numbers = numbers = dict.fromkeys(_NUMBERS, 0)
        self._kept: list[bytes] = []
        kept = self._kept
        self.own_env: list[bytes] = []
        """The entries of the action itself."""
        self.user = b""
        for tag, data, field in pairs(payload):
            if tag in numbers:
                if len(data) != 8:
                    raise GuestMisbehaved(f"field {tag} has {len(data)} bytes where an integer has 8")
                numbers[tag] = int.from_bytes(data, "little")
            elif tag == _ENV:
                self.own_env.append(data)
            elif tag == _USER:
                self.user = data
            if tag not in _REPLACED:
                kept.append(field)
        self.credit = numbers[_CREDIT]
        self.session = numbers[_SESSION]
        self.env: tuple[bytes, ...] = ()

    @property
    def mode(self) -> int:
        """What it starts: a `Mode`, or a number that the guest refuses."""
        return self._numbers[_MODE]

    @property
    def flags(self) -> int:
        """Bits of `RunFlag`."""
        return self._numbers[_FLAGS]

    @property
    def timeout_ms(self) -> int:
        """0 for none."""
        return self._numbers[_TIMEOUT]

    @property
    def box(self) -> int:
        """The client's number of the sandbox."""
        return self._numbers[BOX_TAG]

    def payload(self) -> bytes:
        """The request for the guest."""
        parts = self._kept
        if self.env:
            parts.append(self.env.fields if isinstance(self.env, SharedEntries) else env_fields(self.env))
        if self.credit:
            parts.append(number_field(_CREDIT, self.credit))
        if self.session:
            parts.append(number_field(_SESSION, self.session))
        return b"".join(parts)
