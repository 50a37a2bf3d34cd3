"""`dataclass`, as in the standard library, for the classes of modules that every lease loads.

The standard library writes and compiles six methods for each frozen class when its module is imported, which takes
0.4 ms for a class. `dutyfree run` loads more than a hundred of them. Here `__init__` is compiled when it is first used,
and the other methods are shared functions. `fields`, `replace`, `match`, pickling and `inspect.signature` work
as usual. It has no `InitVar`, `kw_only` and `order`: classes with these use the decorator of the standard library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(cls=None, /, *, init=True, eq=True, frozen=False, slots=False):
        """`dataclasses.dataclass` with these parameters."""
        if cls is None:
            return lambda found: dataclass(found, init=init, eq=eq, frozen=frozen, slots=slots)
        if any(map(dataclasses.is_dataclass, cls.__mro__[1:])):  # seldom, and there are rules for frozen parents
            return dataclasses.dataclass(cls, init=init, eq=eq, frozen=frozen, slots=slots)
        own = frozenset(cls.__dict__)
        has_hash = "__hash__" in own and not (cls.__hash__ is None and "__eq__" in own)
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots)
        made.__dataclass_params__.frozen = frozen  # so that a frozen class can inherit from this one
        methods = {"__repr__": _repr}
        if init:
            methods["__init__"] = _LazyInit(made, frozen)
        if eq:
            found = dataclasses.fields(made)
            methods["__eq__"] = _eq(_values_of([each.name for each in found if each.compare]))
            if not has_hash:
                hashed = [each.name for each in found if (each.compare if each.hash is None else each.hash)]
                methods["__hash__"] = _hash(_values_of(hashed)) if frozen else None
                own -= {"__hash__"}
        if frozen:
            methods |= _frozen(made)
            methods |= {"__getstate__": _getstate, "__setstate__": _setstate} if slots else {}
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made

    class _Absent:
        """In the place of an argument that was not given; as the standard library shows it."""

        def __repr__(self):
            return "<factory>"

    _ABSENT = _Absent()

    class _LazyInit:
        """In the place of `__init__`, until it is first used."""

        def __init__(self, cls, frozen):
            self._cls, self._frozen = cls, frozen

        def __get__(self, instance, owner=None):
            made = _init(self._cls, self._frozen)
            self._cls.__init__ = made
            return made.__get__(instance, owner)

    def _init(cls, frozen):
        """The method `__init__`, compiled from text, as the standard library does it."""
        given, parameters, lines = {"set_": object.__setattr__, "absent": _ABSENT}, [], []
        for number, each in enumerate(dataclasses.fields(cls)):
            name, default, value = each.name, f"default{number}", each.name
            if each.default_factory is not dataclasses.MISSING:
                given[default] = each.default_factory
                value = f"{default}() if {name} is absent else {name}" if each.init else f"{default}()"
                default = "absent"
            elif each.default is not dataclasses.MISSING:
                given[default] = each.default
                value = name if each.init else default
            elif each.init:
                default = ""
            else:
                continue
            if each.init:
                parameters.append(f"{name}={default}" if default else name)
            lines.append(f"set_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        text = f"def make({', '.join(given)}):\n def __init__(self, {', '.join(parameters)}):\n  "
        made = {}
        exec(f"{text}{'; '.join(lines) or 'pass'}\n return __init__", sys.modules[cls.__module__].__dict__, made)
        function = made["make"](**given)
        function.__qualname__ = f"{cls.__qualname__}.__init__"
        function.__annotations__ = {each.name: each.type for each in dataclasses.fields(cls) if each.init}
        function.__annotations__["return"] = None
        return function

    def _values_of(names):
        """A function that gives these attributes of an object as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda each: tuple([getattr(each, name) for name in names])

    def _eq(values):
        def __eq__(self, other):
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        return __eq__

    def _hash(values):
        return lambda self: hash(values(self))

    @recursive_repr()
    def _repr(self):
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    def _frozen(cls):
        names = frozenset(each.name for each in dataclasses.fields(cls))

        def __setattr__(self, name, value):
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def __delattr__(self, name):
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return {"__setattr__": __setattr__, "__delattr__": __delattr__}

    def _getstate(self):
        return [getattr(self, each.name) for each in dataclasses.fields(self)]

    def _setstate(self, state):
        for each, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)
