"""What a sandbox starts from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from dutyfree.checked import all_of, text
from dutyfree.errors import InvalidRequest
from dutyfree.model.environment import check_env
from dutyfree.values import dataclass

MAX_LAYERS = 128
DEFAULT_COMMAND = ("/bin/sh",)
MAX_COMMAND_CHARACTERS = 128 * 1024
"""The longest entrypoint, and the longest default command, all words together."""
_STORED = re.compile(r"sha256:[0-9a-f]{64}")
_LIVE = re.compile(r"live:[0-9a-z-]{1,80}")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}")


@dataclass(frozen=True, slots=True)
class Image:
    """Layers, bottom first, with their environment and working directory. `Image()` is the substrate's default: for
    cells the host's own root, without layers.

    A layer is named `sha256:...` after its content when a store keeps it, or `live:...` while it is the frozen upper of
    a sandbox that a substrate keeps, gone with that substrate.
    """

    layers: tuple[str, ...] = ()
    over_host: bool = True
    """Whether the host's own root lies below the layers; otherwise nothing does."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/root"
    """Where actions run unless they say otherwise."""
    reference: str = ""
    """Instead of layers: the name of an image that the substrate's own engine has, or can get."""
    user: str = ""
    """The user that the image was made for, as its author wrote it; used by leases with `user="image"`."""
    entrypoint: tuple[str, ...] = ()
    """The program that the image was made for; a sandbox does not start it by itself."""
    command: tuple[str, ...] = ()
    """The default arguments of the entrypoint, or a whole command if there is none."""

    @property
    def default_command(self) -> tuple[str, ...]:
        """What the image runs if it is started without arguments; `/bin/sh` if its author named nothing."""
        return (*self.entrypoint, *self.command) or DEFAULT_COMMAND

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", all_of(str, "layers", self.layers))
        if text("reference", self.reference):
            self._check_reference()
        elif not self.layers and not self.over_host:
            raise InvalidRequest("an image without layers has nothing in it")
        if len(self.layers) > MAX_LAYERS:
            raise InvalidRequest(f"an image has at most {MAX_LAYERS} layers, not {len(self.layers)}")
        for layer in self.layers:
            if not _STORED.fullmatch(layer) and not _LIVE.fullmatch(layer):
                raise InvalidRequest(f"{layer!r} does not name a layer")
        if not text("cwd", self.cwd).startswith("/") or "\0" in self.cwd:
            raise InvalidRequest(f"cwd {self.cwd!r} is not an absolute path")
        check_env(self.env)
        for words in ((self.user,), self.entrypoint, self.command):
            if any("\0" in word for word in words) or sum(map(len, words)) > MAX_COMMAND_CHARACTERS:
                raise InvalidRequest("the user, the entrypoint or the command of an image is too long, or has a NUL")

    def _check_reference(self) -> None:
        if self.layers or self.over_host:
            raise InvalidRequest("an image has layers, or is known to an engine by its name, not both")
        if not _REFERENCE.fullmatch(self.reference):
            raise InvalidRequest(f"{self.reference!r:.80} does not name an engine's image")

    @property
    def is_stored(self) -> bool:
        """Whether all of it is in a store, so that it outlives every sandbox."""
        return not self.reference and not any(layer.startswith("live:") for layer in self.layers)

    @property
    def digest(self) -> str:
        """Identifies its whole content. Raises InvalidRequest for what is not stored yet."""
        if not self.is_stored:
            raise InvalidRequest("an image that is in no store has no digest", hint="save the snapshot first")
        return "sha256:" + hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, object]:
        """For JSON; `from_dict` reads it. What an image does not have is left out, as `digest` depends on this."""
        made_for = {"user": self.user, "entrypoint": list(self.entrypoint), "command": list(self.command)}
        start = {"layers": list(self.layers), "over_host": self.over_host, "env": dict(self.env), "cwd": self.cwd}
        return {**start, **{name: value for name, value in made_for.items() if value}}

    @classmethod
    def from_dict(cls, data: object) -> Image:
        """Read what `as_dict` wrote. Raises InvalidRequest for anything else."""
        match data:
            case {"layers": list(layers), "over_host": bool(over_host), "env": dict(env), "cwd": str(cwd), **rest}:
                if all(isinstance(each, str) for each in (*layers, *env, *env.values())):
                    return cls(tuple(layers), over_host, env, cwd, **_made_for(rest))
        raise InvalidRequest("this is not the description of an image")


def _made_for(fields: Mapping[Any, object]) -> dict[str, Any]:
    """The user, the entrypoint and the command of an image. Raises InvalidRequest for other types."""
    found: dict[str, Any] = {}
    match fields.get("user", ""):
        case str(user):
            found["user"] = user
    for name in ("entrypoint", "command"):
        match fields.get(name, []):
            case list(words) if all(isinstance(word, str) for word in words):
                found[name] = tuple(words)
    if len(found) < 3:
        raise InvalidRequest("this is not the description of an image")
    return found
