"""Secret values: they are masked when printed or logged, in reports of local variables, and cannot be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, SupportsIndex, TypeVar, cast

from dutyfree.errors import InvalidRequest

L = TypeVar("L", bound=Mapping[str, object])

_MASK: Final = "'***'"


class Secret:
    """A value that only `reveal` and `reveal_bytes` give out."""

    __slots__ = ("_value",)

    def __init__(self, value: str | bytes | Secret) -> None:
        """Text that is not valid Unicode raises an error only in `reveal`: an error here would contain the text."""
        self._value: bytes | None = value._value if isinstance(value, Secret) else _encoded(value)

    def reveal(self) -> str:
        """The value as text. Raises InvalidRequest if it is not UTF-8."""
        text = _decoded(self._value)
        if text is None:
            raise InvalidRequest("a secret of the environment is not UTF-8 text")
        return HiddenText(text)

    def reveal_bytes(self) -> bytes:
        """The value. Raises InvalidRequest for text that cannot be encoded."""
        if self._value is None:
            raise InvalidRequest("a secret is text that cannot be encoded as UTF-8")
        return HiddenBytes(self._value)

    def __repr__(self) -> str:
        return "Secret(***)"

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


class HiddenText(str):
    """A revealed secret: a string with a masked `repr`, so that tracebacks do not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _MASK

    def __getitem__(self, key: SupportsIndex | slice) -> HiddenText:
        return HiddenText(super().__getitem__(key))  # pretty-printers slice long strings before they show them

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


class HiddenBytes(bytes):
    """As `HiddenText`, for bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _MASK

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return HiddenBytes(found) if isinstance(found, bytes) else found

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def conceal(values: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Wrap the caller's secrets, so that no frame of Dutyfree has them as plain text. Other values stay unchanged."""
    if values is None or not isinstance(values, Mapping):
        return values
    return {name: Secret(value) if isinstance(value, str | bytes) else value for name, value in values.items()}


def conceal_lease(lease: L) -> L:
    """The arguments of a lease, with wrapped secrets."""
    hidden = {name: conceal(value) if name in ("secrets", "secret_files") else value for name, value in lease.items()}  # type: ignore[arg-type]
    return cast(L, hidden)


def _encoded(value: object) -> bytes | None:
    if not isinstance(value, str | bytes):
        raise InvalidRequest(f"a secret is text or bytes, not {type(value).__name__}")
    try:
        return value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError:
        return None


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
