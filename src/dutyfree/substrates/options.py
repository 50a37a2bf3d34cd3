"""The options of every built-in substrate, as types: `dutyfree.local("docker", user="1000:1000")` is checked by them.

Each repeats the keyword arguments of one constructor, where their meaning is documented. A test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from dutyfree.contract import Substrate
    from dutyfree.images.store import Store
    from dutyfree.model import ActionPath, Image
    from dutyfree.substrates.fake import Failure, Latencies
    from dutyfree.substrates.qemu.plan import Accelerator
    from dutyfree.substrates.vm.saved import Boot


class CellOptions(TypedDict, total=False):
    """Of `cell`."""

    masks: tuple[str | Path, ...]
    store: str | Path | Store | None
    one_file_system: bool


class FakeOptions(TypedDict, total=False):
    """Of `fake`."""

    inner: str | Substrate
    latencies: Latencies
    failures: Iterable[Failure]
    seed: int


class DockerOptions(TypedDict, total=False):
    """Of `docker` and `docker-gvisor`."""

    path: ActionPath | str
    image: Image | str | None
    store: Store | str | Path | None
    host: str | None
    user: str
    runtime: str | None


class GVisorOptions(TypedDict, total=False):
    """Of `gvisor`."""

    path: ActionPath | str
    image: Image | str | None
    store: Store | str | Path | None
    runsc: str | Path | None
    platform: str | None


class MicroVMOptions(TypedDict, total=False):
    """Of `microvm`."""

    path: ActionPath | str
    image: Image | str | None
    store: Store | str | Path | None
    kernel: str | Path | None
    boot: Literal["restore", "cold"]
    standby: int
    accelerator: Accelerator | None


class VMOptions(TypedDict, total=False):
    """Of `vm`."""

    provider: str
    path: ActionPath | str
    connection_reuse: bool
    store: Store | str | Path | None
    base: str | Path | None
    packages: str
    boot: Boot | str
    accelerator: str | None
    config: str | Path | None


class ServerOptions(TypedDict, total=False):
    """Of `server`."""

    url: str
    token: str
    ca_file: str | Path | None


class HostedOptions(TypedDict, total=False):
    """Of `hosted`."""

    path: ActionPath | str
    api_url: str | None
    sandbox_url: str | None
    domain: str | None
    api_key: str | None
    template: str | None
    timeout_s: int
    request_timeout_s: float
    user: str
    stdin: Literal["stream", "calls"]
    isolation: str


class AutoOptions(TypedDict, total=False):
    """Of `auto`, which chooses one of the others."""

    trust: str
    expected_actions: int
    expected_work_s: float
    advice: str | os.PathLike[str] | None
    accept_emulated: bool
