"""Substrates by name: Dutyfree's own, and those that other packages add.

A package adds a substrate by an entry point in the group `dutyfree.substrates`. The entry point's name is the
substrate's name. Its value is a callable that takes the substrate's options as keywords, and returns a `Substrate` that
is not open yet. A package cannot replace one of Dutyfree's own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, InvalidRequest, SubstrateUnavailable

GROUP = "dutyfree.substrates"

_BUILT_IN = {
    "process": "dutyfree.substrates.process:ProcessSubstrate",
    "cell": "dutyfree.substrates.cell:CellSubstrate",
    "docker": "dutyfree.substrates.docker:DockerSubstrate",
    "docker-gvisor": "dutyfree.substrates.docker:GVisorDockerSubstrate",
    "gvisor": "dutyfree.substrates.gvisor:GVisorSubstrate",
    "microvm": "dutyfree.substrates.qemu:MicroVMSubstrate",
    "vm": "dutyfree.substrates.vm:VMSubstrate",
    "fake": "dutyfree.substrates.fake:FakeSubstrate",
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
        raise InvalidRequest(f"there is no substrate {name!r}", hint=f"choose one of: {', '.join(sorted(table))}")
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
            raise InvalidRequest(f"substrate {name!r} does not take these options: {error}") from error
        raise _broken(entry, f"it cannot be made: {error}") from error
    except Exception as error:
        raise _broken(entry, f"it cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(substrate, Substrate):
        raise _broken(entry, f"it returned a {type(substrate).__name__}, which is not a Substrate")
    return substrate


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


def _built_in() -> dict[str, EntryPoint]:
    return {name: EntryPoint(name, value, GROUP) for name, value in _BUILT_IN.items()}


def _table() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)} | _built_in()


def _broken(entry: EntryPoint, why: str) -> SubstrateUnavailable:
    package = entry.dist.name if entry.dist is not None else None
    origin = f"{entry.value}, from the package {package}" if package else entry.value
    hint = f"reinstall or remove the package {package}" if package else None
    return SubstrateUnavailable(f"substrate {entry.name!r} ({origin}) is broken: {why}", hint=hint)
