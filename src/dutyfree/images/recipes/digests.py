"""Names for what stages give, before they are built: the same content, the same name, wherever it stands.

A digest covers all that can change what a stage gives: its parent's digest, its lines, environment, directory and
network, where its inputs go and what is in them. It does not cover what cannot: the names of stages and recipes, time
limits, where on this machine the inputs come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from dutyfree.model.recipe import Stage

VERSION: Final = 1
"""Part of every digest. It grows when the way in which stages are built changes what they give."""


def base_digest(kind: str, identity: Mapping[str, object]) -> str:
    """The digest of a base of this kind, given what tells it from all others of its kind."""
    return _digest({"base": kind, "identity": identity})


def stage_digest(parent: str, stage: Stage, file_fingerprints: Sequence[str]) -> str:
    """The digest of `stage` over `parent`; `file_fingerprints` are those of `stage.files`, in their order."""
    return _digest(
        {
            "parent": parent,
            "run": list(stage.run),
            "env": dict(stage.env),
            "cwd": stage.cwd,
            "network": stage.network.value,
            "files": [[given.target, print_] for given, print_ in zip(stage.files, file_fingerprints, strict=True)],
            "git": [[given.target, given.commit] for given in stage.git],
        }
    )


def _digest(content: Mapping[str, object]) -> str:
    canonical = json.dumps({"version": VERSION, **content}, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
