"""The rules of an `Egress` as a function: host and port in, decision out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dutyfree.egress.addresses import refusal
from dutyfree.errors import InvalidRequest
from dutyfree.model.egress import DEFAULT_PORTS, Egress, Pattern
from dutyfree.model.hostname import HostName

NO_RULE: Final = "no rule allows it"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a host may be reached on a port, and the rule that says so."""

    allowed: bool
    rule: str
    private: bool = False
    """Whether its private addresses may be reached, too."""


class Rules:
    """The compiled rules. Raises InvalidRequest for a literal address in `allow` that only `private` can allow."""

    def __init__(self, egress: Egress) -> None:
        self.egress = egress
        self._deny = _parse(egress.deny)
        self._private = _parse(egress.private)
        self._allow = _parse(egress.allow)
        for pattern in self._allow:
            if not isinstance(pattern.host, str) and (why := refusal(pattern.host, private=False, literal=True)):
                raise InvalidRequest(f"egress allow {str(pattern)!r}: {why}", hint="put it into private=")
        for pattern in self._private:
            if not isinstance(pattern.host, str) and (why := refusal(pattern.host, private=True, literal=True)):
                raise InvalidRequest(f"egress private {str(pattern)!r}: {why}")

    def decide(self, host: HostName, port: int) -> Decision:
        """What the rules say. A refusal wins over all else."""
        for pattern in self._deny:
            if pattern.port in (None, port) and pattern.covers(host):
                return Decision(False, f"deny {pattern}")
        for pattern in self._private:
            if _allows(pattern, host, port):
                return Decision(True, f"private {pattern}", private=True)
        for pattern in self._allow:
            if _allows(pattern, host, port):
                return Decision(True, f"allow {pattern}")
        return Decision(False, NO_RULE)

    def ports_of(self, host: HostName) -> tuple[int, ...]:
        """The ports on which the host may be reached, sorted."""
        ports: set[int] = set()
        for pattern in (*self._private, *self._allow):
            if pattern.covers(host):
                ports.update(DEFAULT_PORTS if pattern.port is None else (pattern.port,))
        return tuple(sorted(port for port in ports if self.decide(host, port).allowed))


def _parse(patterns: Iterable[str]) -> tuple[Pattern, ...]:
    return tuple(Pattern.parse(each) for each in patterns)


def _allows(pattern: Pattern, host: HostName, port: int) -> bool:
    return port in (DEFAULT_PORTS if pattern.port is None else (pattern.port,)) and pattern.covers(host)
