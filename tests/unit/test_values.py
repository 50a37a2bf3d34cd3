"""Our `dataclass` does what the standard library's does."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field

import pytest

from dutyfree import values


def _shapes(dataclass: Callable[..., Callable[[type], type]]) -> list[type]:
    @dataclass(frozen=True, slots=True)
    class Frozen:
        """All kinds of fields."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        d: int = field(default=4, compare=False, repr=False)
        e: int = field(default=5, init=False)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    @dataclass(slots=True)
    class Plain:
        """One field, which can change."""

        a: int

    @dataclass(eq=False, slots=True)
    class Identity:
        """Equal to itself alone."""

        a: int = 1

    @dataclass(frozen=True)
    class Parent:
        """With a `__dict__`, and a representation of its own."""

        a: int

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True)
    class Child(Parent):
        """Fields of a parent come first."""

        b: int = 2

    @dataclass(frozen=True, slots=True)
    class Empty:
        """Without fields."""

    return [Frozen, Plain, Identity, Parent, Child, Empty]


OURS, THEIRS = _shapes(values.dataclass), _shapes(dataclasses.dataclass)
both = pytest.mark.parametrize(
    ("ours", "theirs"), list(zip(OURS, THEIRS, strict=True)), ids=[each.__name__ for each in OURS]
)


def made(cls: type, *arguments: object, **named: object) -> str:
    """What a call gives, as text."""
    try:
        return repr(cls(*arguments, **named)).replace(".<locals>", "")
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@both
def test_calls_are_the_same(ours: type, theirs: type) -> None:
    for arguments in ((), (1,), (-1,), (1, 2), (1, 2, [3]), (1, 2, [3], 4), (1, 2, [3], 4, 5)):
        assert made(ours, *arguments) == made(theirs, *arguments)
    assert made(ours, a=1) == made(theirs, a=1)
    assert made(ours, z=1) == made(theirs, z=1)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__


@both
def test_equality_hashes_and_changes_are_the_same(ours: type, theirs: type) -> None:
    results = []
    for cls in (ours, theirs):
        one, same, other = [cls(*([number] if cls.__match_args__ else [])) for number in (1, 1, 2)]
        seen: list[object] = [one == same, one == other, one == 1, cls.__hash__ is None]
        changes = (lambda each: setattr(each, "a", 3), lambda each: delattr(each, "a"))
        for change in changes if cls.__match_args__ else ():
            try:
                change(one)
                seen.append("done")
            except (AttributeError, dataclasses.FrozenInstanceError) as error:
                seen.append((type(error), str(error) if "slots" not in str(error) else ""))
        results.append(seen)
    assert results[0] == results[1]


def test_the_values_of_frozen_ones_are_their_hashes() -> None:
    frozen = OURS[3]
    assert hash(frozen(1)) == hash(frozen(1))
    assert len({frozen(1), frozen(1), frozen(2)}) == 2


def test_fields_can_be_left_out_of_hashes() -> None:
    @values.dataclass(frozen=True, slots=True)
    class Labelled:
        name: str
        labels: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)

    assert hash(Labelled("a", {"b": "c"})) == hash(Labelled("a"))
    assert Labelled("a", {"b": "c"}) != Labelled("a")


def test_copies_and_replacements_are_made() -> None:
    frozen, child = OURS[0](1, c=[7]), OURS[4](1)
    assert dataclasses.replace(child, b=3).b == 3
    assert dataclasses.asdict(child) == {"a": 1, "b": 2}
    assert copy.deepcopy(frozen) == frozen
    with pytest.raises(ValueError, match="negative"):
        OURS[0](-1)


def test_frozen_ones_with_slots_can_be_pickled() -> None:
    from dutyfree.model import Resources

    assert pickle.loads(pickle.dumps(Resources(pids=7))) == Resources(pids=7)


def test_a_frozen_class_of_the_standard_library_can_inherit_from_ours() -> None:
    @dataclasses.dataclass(frozen=True)
    class Heir(OURS[3]):  # type: ignore[misc, name-defined]
        c: int = 3

    assert (Heir(1).a, Heir(1).c) == (1, 3)
