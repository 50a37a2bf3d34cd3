"""Errors as JSON. The name of a class is looked up in `dutyfree.errors`; nothing is ever imported by a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

from dutyfree import errors
from dutyfree.codec.document import Codec
from dutyfree.codec.values import MAX_TEXT_CHARACTERS, flag, number, optional, sequence, text, whole
from dutyfree.errors import BuildFailed, CapacityError, DutyfreeError, FileFailed, InvalidRequest, Party, PortFailed
from dutyfree.tables import Table

_CUT: Final = " ... (cut)"


def _known(kind: type[DutyfreeError]) -> Iterator[type[DutyfreeError]]:
    if kind.__module__ == errors.__name__:
        yield kind
    for each in kind.__subclasses__():
        yield from _known(each)


KINDS: Final = {kind.__name__: kind for kind in _known(DutyfreeError)}
"""Every class that `decode` gives, by its name."""


def _write_error(error: DutyfreeError) -> dict[str, Any]:
    """Texts that are too long to be read again are cut: an error is reported in any case."""
    lineage = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DutyfreeError)]
    fields = {
        "kind": lineage[0],
        "ancestors": lineage[1:],
        "party": getattr(error, "party", None),
        "retryable": error.retryable,
        "message": _cut(error.message),
        "hint": None if error.hint is None else _cut(error.hint),
    }
    match error:
        case CapacityError():
            fields["retry_after_s"] = error.retry_after_s
        case FileFailed() | PortFailed():
            fields["errno"] = error.errno
        case BuildFailed():
            fields |= {"stage": _cut(error.stage), "log": _cut(error.log)}
    return fields


def _read_error(table: Table) -> DutyfreeError:
    """An error of a class that is not known here becomes one of its nearest known ancestor."""
    name = table.required("kind", text)
    ancestors = table.required("ancestors", sequence(text))
    kind = next((KINDS[each] for each in (name, *ancestors) if each in KINDS), DutyfreeError)
    party, retryable = table.required("party", optional(text)), table.required("retryable", flag)
    error = kind(
        table.required("message", text), hint=table.required("hint", optional(text)), **_arguments(kind, table)
    )
    if name not in KINDS:
        # The class is another package's, and may differ from its ancestor in both.
        if party not in (None, *get_args(Party)):
            raise InvalidRequest(f"{party!r:.80} is not a party; there are {', '.join(get_args(Party))}")
        vars(error).update(retryable=retryable, **({} if party is None else {"party": party}))
    return error


def _arguments(kind: type[DutyfreeError], table: Table) -> dict[str, Any]:
    """What the class takes beside message and hint."""
    if issubclass(kind, CapacityError):
        return {"retry_after_s": table.required("retry_after_s", optional(number))}
    if issubclass(kind, FileFailed | PortFailed):
        return {"errno": table.required("errno", whole)}
    if issubclass(kind, BuildFailed):
        return {"stage": table.required("stage", text), "log": table.required("log", text)}
    return {}


def _cut(words: str) -> str:
    return words if len(words) <= MAX_TEXT_CHARACTERS else words[: MAX_TEXT_CHARACTERS - len(_CUT)] + _CUT


ERROR: Final = Codec("an error", _write_error, _read_error)
