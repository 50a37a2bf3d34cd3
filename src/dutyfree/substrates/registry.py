"""Substrates by name: Dutyfree's own, and those that other packages add.

A package adds a substrate by an entry point in the group `dutyfree.substrates`. The entry point's name is the
substrate's name. Its value is a callable that takes the substrate's options as keywords, and returns a `Substrate` that
is not open yet. A package cannot replace one of Dutyfree's own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateUnavailable
from dutyfree.formatting import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dutyfree.substrates"
AUTO = "auto"
"""The name by which a host chooses one of the others itself; no substrate can have it."""

_BUILT_IN = {
    "process": "dutyfree.substrates.process:ProcessSubstrate",
    "cell": "dutyfree.substrates.cell:CellSubstrate",
    "docker": "dutyfree.substrates.docker:DockerSubstrate",
    "docker-gvisor": "dutyfree.substrates.docker:GVisorDockerSubstrate",
    "gvisor": "dutyfree.substrates.gvisor:GVisorSubstrate",
    "microvm": "dutyfree.substrates.qemu:MicroVMSubstrate",
    "vm": "dutyfree.substrates.vm:VMSubstrate",
    "hosted": "dutyfree.substrates.hosted:HostedSubstrate",
    "fake": "dutyfree.substrates.fake:FakeSubstrate",
    "server": "dutyfree.remote.substrate:RemoteSubstrate",
}


def names() -> tuple[str, ...]:
    """All names that `load` accepts, sorted. Nothing is imported, so a substrate may still be unavailable."""
    return tuple(sorted(_table()))


def load(name: str, **options: Any) -> Substrate:
    """Make a substrate, which is not open yet.

    Raises InvalidRequest for an unknown name, or for options that the substrate does not take. Raises
    SubstrateUnavailable, with the package's name, if the entry point cannot be imported or is not a substrate.
    """
    # Plugins are searched only for other names: the search takes longer than making a cell.
    table = _built_in() if name in _BUILT_IN else _table()
    if name not in table:
        raise unknown(name)
    entry = table[name]
    try:
        factory = entry.load()
    except Exception as error:
        raise _broken(entry, f"it cannot be imported: {type(error).__name__}: {error}") from error
    try:
        substrate = factory(**options)
    except DutyfreeError:
        raise
    except TypeError as error:
        if options:
            raise wrong_options(name, factory, options, error) from error
        raise _broken(entry, f"it cannot be made: {error}") from error
    except Exception as error:
        raise _broken(entry, f"it cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(substrate, Substrate):
        raise _broken(entry, f"it returned a {type(substrate).__name__}, which is not a Substrate")
    return substrate


def unknown(name: str) -> InvalidRequest:
    """The error for a name that is not registered, with the names that are."""
    known = names()
    meant = did_you_mean(name, known if name == AUTO else (*known, AUTO))
    return InvalidRequest(f"there is no substrate {name!r:.80}", hint=f"{meant}choose one of: {', '.join(known)}")


def wrong_options(name: str, factory: Callable[..., Any], options: Iterable[str], error: TypeError) -> InvalidRequest:
    """The error for options that a factory refused with `error`: names the first that is wrong, and the valid ones."""
    import inspect

    found = inspect.signature(factory).parameters.values()
    known = [each.name for each in found if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    wrong = next((each for each in options if each not in known), None)
    if wrong is None:
        return InvalidRequest(f"substrate {name!r} does not take these options: {error}")
    valid = f"{did_you_mean(wrong, known)}it has: {', '.join(known)}" if known else "it has no options"
    return InvalidRequest(f"substrate {name!r} has no option {wrong!r:.80}", hint=valid)


def parse_options(entries: Iterable[str]) -> dict[str, Any]:
    """Options for `load`, from `NAME=VALUE` words. `true`, `false` and whole numbers become bools and ints.

    Raises InvalidRequest for a word in another form.
    """
    options: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidRequest(f"{entry!r:.80} is not an option of a substrate", hint="write NAME=VALUE")
        plain = {"true": True, "false": False}
        options[name] = plain[value] if value in plain else int(value) if value.isdecimal() else value
    return options


class _BuiltIn:
    """An entry point of our own. `importlib.metadata` would do, but importing it takes longer than making a cell."""

    dist = None

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self.value = value

    def load(self) -> Any:
        module, _, attribute = self.value.partition(":")
        return getattr(import_module(module), attribute)


def _built_in() -> dict[str, EntryPoint | _BuiltIn]:
    return {name: _BuiltIn(name, value) for name, value in _BUILT_IN.items()}


def _table() -> Mapping[str, EntryPoint | _BuiltIn]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)} | _built_in()


def _broken(entry: EntryPoint | _BuiltIn, why: str) -> SubstrateUnavailable:
    package = entry.dist.name if entry.dist is not None else None
    origin = f"{entry.value}, from the package {package}" if package else entry.value
    hint = f"reinstall or remove the package {package}" if package else None
    return SubstrateUnavailable(f"substrate {entry.name!r} ({origin}) is broken: {why}", hint=hint)
