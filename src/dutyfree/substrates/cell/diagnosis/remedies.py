"""Remedies, in the terms of the environment: Docker's flags, a pod's fields, a command. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """The environment in which this process runs, which decides how its privileges are set."""

    MACHINE = "machine"
    DOCKER = "docker"
    PODMAN = "podman"
    POD = "pod"
    CONTAINER = "container"
    """A container of another or unknown engine."""

    @property
    def words(self) -> str:
        """The name of the place as the subject of a sentence."""
        return {"machine": "this process", "pod": "the pod"}.get(self.value, "the container")


class Option(Enum):
    """A restriction that container engines apply by default."""

    SECCOMP = "seccomp"
    APPARMOR = "apparmor"
    SELINUX = "selinux"
    PROC = "proc"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change. Empty if no remedy is known."""

    capabilities: frozenset[str] = frozenset()
    options: frozenset[Option] = frozenset()
    on_machine: tuple[str, ...] = ()
    """Commands for root of the machine itself."""
    here: tuple[str, ...] = ()
    """What this user can do in the place where this process runs."""

    def line(self, place: Place) -> str:
        """The whole remedy in one line."""
        parts = [_RENDER.get(place, _docker)(self)] if self.capabilities or self.options else []
        where = "as root" if place is Place.MACHINE else "on the machine itself, as root"
        return "; ".join([*parts, *(f"{where}: {each}" for each in self.on_machine), *self.here])


def merged(remedies: Iterable[Remedy]) -> Remedy:
    """One remedy with all changes."""
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
    """For a confined process outside of containers: most often a systemd unit confines it."""
    fields = [f"CapabilityBoundingSet= with CAP_{' CAP_'.join(sorted(remedy.capabilities))}"] * bool(
        remedy.capabilities
    )
    fields += [text for option, text in _MACHINE.items() if option in remedy.options]
    return f"where this was started, such as a systemd unit: {', '.join(fields)}"


_RENDER = {Place.MACHINE: _machine, Place.PODMAN: _podman, Place.POD: _pod}
