"""What mends a cause, in the terms of where it runs: docker's flags, a pod's fields, a command. Everything is pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """Where this process runs, as far as that decides how its rights are set."""

    MACHINE = "machine"
    DOCKER = "docker"
    PODMAN = "podman"
    POD = "pod"
    CONTAINER = "container"
    """Of another kind, or one that does not show which."""

    @property
    def words(self) -> str:
        """As the subject of a sentence."""
        return {"machine": "this process", "pod": "the pod"}.get(self.value, "the container")


class Option(Enum):
    """What a container engine restricts unless it is asked not to."""

    SECCOMP = "seccomp"
    APPARMOR = "apparmor"
    SELINUX = "selinux"
    PROC = "proc"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change. Empty where nothing on this machine mends it."""

    capabilities: frozenset[str] = frozenset()
    options: frozenset[Option] = frozenset()
    on_machine: tuple[str, ...] = ()
    """Commands for root of the machine itself."""
    here: tuple[str, ...] = ()
    """What this user can do, where this process runs."""

    def line(self, place: Place) -> str:
        """All of it in one line."""
        parts = [_RENDER.get(place, _docker)(self)] if self.capabilities or self.options else []
        where = "as root" if place is Place.MACHINE else "on the machine itself, as root"
        return "; ".join([*parts, *(f"{where}: {each}" for each in self.on_machine), *self.here])


def merged(remedies: Iterable[Remedy]) -> Remedy:
    """All of them at once."""
    found = list(remedies)
    return Remedy(
        frozenset().union(*(each.capabilities for each in found)),
        frozenset().union(*(each.options for each in found)),
        tuple(dict.fromkeys(command for each in found for command in each.on_machine)),
        tuple(dict.fromkeys(command for each in found for command in each.here)),
    )


_DOCKER = {
    Option.SECCOMP: "--security-opt seccomp=unconfined",
    Option.APPARMOR: "--security-opt apparmor=unconfined",
    Option.SELINUX: "--security-opt label=disable",
    Option.PROC: "--security-opt systempaths=unconfined",
}
_PODMAN = _DOCKER | {Option.PROC: "--security-opt unmask=ALL"}
_POD = {
    Option.SECCOMP: "seccompProfile: {type: Unconfined}",
    Option.APPARMOR: "appArmorProfile: {type: Unconfined}",
    Option.SELINUX: "seLinuxOptions: {type: spc_t}",
    Option.PROC: "procMount: Unmasked",
}
_MACHINE = {
    Option.SECCOMP: "RestrictNamespaces=no and a SystemCallFilter= that allows @mount",
    Option.APPARMOR: "AppArmorProfile=unconfined",
    Option.SELINUX: "SELinuxContext= of an unconfined domain",
    Option.PROC: "ProtectProc=default and ProtectKernelTunables=no",
}


def _flags(program: str, options: dict[Option, str], remedy: Remedy) -> str:
    added = [f"--cap-add {name}" for name in sorted(remedy.capabilities)]
    return " ".join([program, *added, *(text for option, text in options.items() if option in remedy.options)])


def _docker(remedy: Remedy) -> str:
    return _flags("add to docker run:", _DOCKER, remedy)


def _podman(remedy: Remedy) -> str:
    return _flags("add to podman run:", _PODMAN, remedy)


def _pod(remedy: Remedy) -> str:
    fields = [f"capabilities: {{add: [{', '.join(sorted(remedy.capabilities))}]}}"] if remedy.capabilities else []
    fields += [text for option, text in _POD.items() if option in remedy.options]
    lines = [f"securityContext: {{{', '.join(fields)}}} in the container"] if fields else []
    lines += ["hostUsers: false in the pod's spec"] if Option.PROC in remedy.options else []
    return ", and ".join(lines)


def _machine(remedy: Remedy) -> str:
    """A process of the machine itself that is confined is most often a unit of systemd's."""
    fields = [f"CapabilityBoundingSet= with CAP_{' CAP_'.join(sorted(remedy.capabilities))}"] * bool(
        remedy.capabilities
    )
    fields += [text for option, text in _MACHINE.items() if option in remedy.options]
    return f"where this was started, such as a systemd unit: {', '.join(fields)}"


_RENDER = {Place.MACHINE: _machine, Place.PODMAN: _podman, Place.POD: _pod}
