"""Makes a sandbox ready: runs stages in it.

On `process`, sandboxes share the host's files, so stages with fixed paths would conflict. But each sandbox has its own
home directory (`$HOME`, in lines `~`): on `process` a private directory, elsewhere `/root`. Stages that put their
inputs under `HOME` run on every substrate: this module replaces `HOME` by the sandbox's home directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dutyfree.contract import Sandbox
from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.images.recipes import inputs, progress
from dutyfree.images.recipes.lines import Lines
from dutyfree.images.recipes.progress import StageProgress
from dutyfree.model import Action, Network, Stage
from dutyfree.threads import in_thread

HOME: Final = "/~"
"""The sandbox's home directory, as the first part of an absolute path; in workload files it is written `~`."""
_ASKING_S: Final = 120.0


async def make_ready(sandbox: Sandbox, stages: Sequence[Stage], *, after: Sequence[Stage] = ()) -> None:
    """Run the stages: for each one put its inputs, then run its lines with the environment of all stages so far.

    `after` are the stages that ran in this sandbox before. The sandbox must have the network that all of them need
    (`network_of`). Raises BuildFailed, which names the stage and the line and has the end of the log;
    InvalidRequest for a missing input; otherwise as `Sandbox.run` does.
    """
    home = await _home(sandbox) if any(_is_at_home(path) for path in _paths(stages, after)) else ""
    env = {name: value for stage in after for name, value in stage.env.items()}
    cwd = next((_resolved(stage.cwd, home) for stage in reversed(after) if stage.cwd is not None), None)
    for number, stage in enumerate(stages, start=1):
        env |= stage.env
        lines = Lines(stage, StageProgress(progress.ignore, stage.name, number, len(stages)))
        try:
            await _put_inputs(sandbox, stage, home)
            if stage.cwd is not None:
                cwd = _resolved(stage.cwd, home)
                await sandbox.files.mkdir(cwd)
            await lines.run(sandbox, cwd, env)
        except FileFailed as error:
            raise lines.failure(error.message) from error


def network_of(stages: Sequence[Stage]) -> Network:
    """The network that a sandbox must have for all of these stages."""
    return Network.HOST if any(stage.network is Network.HOST for stage in stages) else Network.NONE


def at_home(stages: Sequence[Stage], home: str = "/root") -> tuple[Stage, ...]:
    """The same stages with `HOME` replaced by `home`, for building layers from them."""
    return tuple(
        replace(
            stage,
            files=tuple(replace(given, target=_resolved(given.target, home)) for given in stage.files),
            git=tuple(replace(wanted, target=_resolved(wanted.target, home)) for wanted in stage.git),
            cwd=_resolved(stage.cwd, home) if stage.cwd is not None else None,
        )
        for stage in stages
    )


async def _put_inputs(sandbox: Sandbox, stage: Stage, home: str) -> None:
    for given in stage.files:
        source = await in_thread(Path(given.source).resolve)
        if not await in_thread(source.exists):
            raise InvalidRequest(f"stage {stage.name!r}: there is no {given.source!r}", hint="see `materials.prepare`")
        await sandbox.files.upload(source, _resolved(given.target, home))
    for wanted in stage.git:
        with tempfile.TemporaryDirectory() as directory:
            tree = await inputs.checkout(wanted, Path(directory))
            await sandbox.files.upload(tree, _resolved(wanted.target, home))


def _paths(stages: Sequence[Stage], after: Sequence[Stage]) -> Iterator[str]:
    """All paths in the sandbox that `stages` use."""
    for stage in stages:
        yield from (given.target for given in stage.files)
        yield from (wanted.target for wanted in stage.git)
    yield from (stage.cwd for stage in (*after, *stages) if stage.cwd is not None)


def _is_at_home(path: str) -> bool:
    return path == HOME or path.startswith(HOME + "/")


def _resolved(path: str, home: str) -> str:
    return home + path.removeprefix(HOME) if _is_at_home(path) else path


async def _home(sandbox: Sandbox) -> str:
    seen = await sandbox.run(Action('printf %s "$HOME"', timeout_s=_ASKING_S))
    if not seen.ok or not seen.text.startswith("/"):
        raise InvalidRequest(f"the sandbox's HOME is {seen.text!r:.80}: a workload needs one that is an absolute path")
    return seen.text.rstrip("/")
