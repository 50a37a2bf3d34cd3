"""Requests as JSON: specs of sandboxes, their parts, and actions. A field that is left out has its default."""

from __future__ import annotations

from typing import Any, Final

from dutyfree.codec.document import Codec
from dutyfree.codec.values import (
    choice,
    flag,
    given,
    mapping,
    natural,
    number,
    optional,
    read_bytes,
    sequence,
    text,
    write_bytes,
)
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Cache, Capability, Image, Mount, Network, Resources, SandboxSpec, Unenforced, Writes
from dutyfree.tables import Table


def _write_resources(resources: Resources) -> dict[str, Any]:
    return {name: getattr(resources, name) for name in ("memory_bytes", "cpus", "pids", "disk_bytes")}


def _read_resources(table: Table) -> Resources:
    count = optional(natural)
    return Resources(**given(table, memory_bytes=count, cpus=optional(number), pids=count, disk_bytes=count))


RESOURCES: Final = Codec("resources", _write_resources, _read_resources)


def _write_image(image: Image) -> dict[str, Any]:
    return {
        "layers": list(image.layers),
        "over_host": image.over_host,
        "env": dict(image.env),
        "cwd": image.cwd,
        "reference": image.reference,
        "user": image.user,
        "entrypoint": list(image.entrypoint),
        "command": list(image.command),
    }


def _read_image(table: Table) -> Image:
    return Image(
        **given(
            table,
            layers=sequence(text),
            over_host=flag,
            env=mapping(text),
            cwd=text,
            reference=text,
            user=text,
            entrypoint=sequence(text),
            command=sequence(text),
        ),
    )


IMAGE: Final = Codec("an image", _write_image, _read_image)


def _write_mount(mount: Mount) -> dict[str, Any]:
    return {"source": str(mount.source), "target": mount.target}


def _read_mount(table: Table) -> Mount:
    return Mount(table.required("source", text), table.required("target", text))


MOUNT: Final = Codec("a mount", _write_mount, _read_mount)


def _write_cache(cache: Cache) -> dict[str, Any]:
    return {"name": cache.name, "target": cache.target, "max_bytes": cache.max_bytes, "owner": cache.owner}


def _read_cache(table: Table) -> Cache:
    needed = {key: table.required(key, text) for key in ("name", "target")}
    return Cache(**{**needed, **given(table, name=text, target=text, max_bytes=natural, owner=text)})


CACHE: Final = Codec("a cache", _write_cache, _read_cache)


def _write_spec(spec: SandboxSpec) -> dict[str, Any]:
    return {
        "resources": _write_resources(spec.resources),
        "network": str(spec.network),
        "writes": str(spec.writes),
        "env": dict(spec.env),
        "hostname": spec.hostname,
        "image": _write_image(spec.image),
        "mounts": [_write_mount(each) for each in spec.mounts],
        "caches": [_write_cache(each) for each in spec.caches],
    }


def _read_spec(table: Table) -> SandboxSpec:
    return SandboxSpec(
        **given(
            table,
            resources=RESOURCES.decode_inner,
            network=choice(Network),
            writes=choice(Writes),
            env=mapping(text),
            hostname=text,
            image=IMAGE.decode_inner,
            mounts=sequence(MOUNT.decode_inner),
            caches=sequence(CACHE.decode_inner),
        )
    )


SPEC: Final = Codec("a sandbox spec", _write_spec, _read_spec)


def _write_action(action: Action) -> dict[str, Any]:
    return {
        "command": action.command if isinstance(action.command, str) else list(action.command),
        "cwd": action.cwd,
        "env": dict(action.env),
        **({} if action.stdin is None else write_bytes("stdin", action.stdin)),
        "timeout_s": action.timeout_s,
        "output_limit_bytes": action.output_limit_bytes,
        **({} if action.user is None else {"user": action.user}),
        **({"merge": True} if action.merge else {}),
    }


def _read_action(table: Table) -> Action:
    """An argv becomes a tuple."""
    rest = {key: value for key, value in table.content.items() if key not in ("stdin", "stdin_base64")}
    has_input = len(rest) < len(table.content)
    fields = given(
        Table(rest, table.where),
        command=_command,
        cwd=optional(text),
        env=mapping(text),
        timeout_s=number,
        output_limit_bytes=natural,
        user=_user,
        merge=flag,
    )
    if "command" not in fields:
        raise InvalidRequest("'command' is missing")
    return Action(**fields, stdin=read_bytes(table, "stdin") if has_input else None)


def _command(value: Any) -> str | tuple[str, ...]:
    return text(value) if isinstance(value, str) else sequence(text)(value)


def _user(value: Any) -> str | int:
    return text(value) if isinstance(value, str) else natural(value)


ACTION: Final = Codec("an action", _write_action, _read_action)


def _write_unenforced(unenforced: Unenforced) -> dict[str, Any]:
    return {"what": str(unenforced.what), "reason": unenforced.reason}


def _read_unenforced(table: Table) -> Unenforced:
    return Unenforced(table.required("what", choice(Capability)), table.required("reason", text))


UNENFORCED: Final = Codec("an unenforced bound", _write_unenforced, _read_unenforced)
