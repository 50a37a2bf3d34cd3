"""The types of substrates' options say what their constructors take."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from dutyfree.choose.automatic import Choice
from dutyfree.contract import Substrate
from dutyfree.images.store import Store
from dutyfree.model import ActionPath, Image
from dutyfree.substrates import options, registry
from dutyfree.substrates.fake import Failure, Latencies
from dutyfree.substrates.qemu.plan import Accelerator
from dutyfree.substrates.vm.saved import Boot

NAMES = {
    "os": os,
    **{kind.__name__: kind for kind in (Path, Store, ActionPath, Image, Failure, Latencies, Substrate, Iterable, Boot)},
    "Accelerator": Accelerator,
}
TYPES: dict[str, type | None] = {
    "cell": options.CellOptions,
    "docker": options.DockerOptions,
    "docker-gvisor": options.DockerOptions,
    "fake": options.FakeOptions,
    "gvisor": options.GVisorOptions,
    "hosted": options.HostedOptions,
    "microvm": options.MicroVMOptions,
    "process": None,
    "server": options.ServerOptions,
    "vm": options.VMOptions,
}


def taken(constructor: Callable[..., Any]) -> dict[str, Any]:
    """The names of the keyword arguments, and their types."""
    hints = get_type_hints(constructor, localns=NAMES)
    return {name: hints[name] for name in inspect.signature(constructor).parameters if name != "self"}


def test_every_built_in_substrate_has_a_type() -> None:
    assert set(registry._BUILT_IN) == set(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_the_type_is_the_constructors_signature(name: str) -> None:
    substrate = registry._built_in()[name].load()
    kind = TYPES[name]
    assert taken(substrate.__init__) == ({} if kind is None else get_type_hints(kind, localns=NAMES))
    assert kind is None or kind.__required_keys__ == frozenset()


def test_the_options_of_auto() -> None:
    assert taken(Choice.of) == get_type_hints(options.AutoOptions, localns=NAMES)


def test_no_option_is_a_keyword_of_local() -> None:
    """`dutyfree.local` would keep it for itself."""
    kinds = [kind for kind in TYPES.values() if kind is not None]
    assert not {"substrate", "pool", "on_span"} & {
        name for kind in kinds for name in get_type_hints(kind, localns=NAMES)
    }
