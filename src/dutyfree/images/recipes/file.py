"""Recipes as TOML files.

::

    name = "attrs"
    base = "host"

    [defaults]
    network = "none"

    [[stage]]
    name = "repository"
    git = { url = "./attrs.git", commit = "0123...", target = "/src/attrs" }

    [[stage]]
    name = "dependencies"
    files = [{ source = "wheelhouse", target = "/src/wheelhouse" }]
    run = ["python3 -m venv /venv", "/venv/bin/pip install --no-index --find-links /src/wheelhouse pytest"]
    env = { PATH = "/venv/bin:/usr/bin:/bin" }
    cwd = "/src/attrs"
    network = "none"
    timeout_s = 600

Paths on this machine are relative to the file. A `run` that is one string is one script, even with several lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.images.store.names import check_name
from dutyfree.model.limits import Network
from dutyfree.model.recipe import DEFAULT_STAGE_TIMEOUT_S, FileInput, GitInput, Recipe, Stage
from dutyfree.tables import Table

_NETWORKS: Final = (Network.NONE, Network.HOST)
"""The networks of cells, which run the lines of recipes."""
_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/]+:")
_FETCHED: Final = ("docker://", "docker-daemon:")


def load_recipe(path: Path | str) -> Recipe:
    """The recipe in a TOML file. Raises as `load` does."""
    return load(path)[1]


def load(path: Path | str) -> tuple[str | None, Recipe]:
    """The name (or None) and the recipe in a TOML file.

    Raises InvalidRequest, which names the file and, if possible, the stage and the key.
    """
    path = Path(path)
    return parse(tables.read_document(path, "recipe"), path)


def parse(document: Mapping[str, Any], path: Path) -> tuple[str | None, Recipe]:
    """The name and the recipe in a TOML `document`; paths are relative to its file `path`. Raises as `load` does."""
    table = Table(document, str(path))
    table.allow("name", "base", "defaults", "stage")
    name = table.optional("name", tables.text)
    if name is not None:
        table.checked("name", lambda: check_name(name))
    defaults = table.inner("defaults", table.optional("defaults", tables.table) or {})
    defaults.allow("network")
    network = defaults.optional("network", _network) or Network.NONE
    stages = parse_stages(table.optional("stage", tables.tables) or [], path, network)
    base = table.optional("base", tables.text) or "host"
    return name, table.checked(None, lambda: Recipe(_base(base, path.absolute().parent), stages))


def parse_stages(
    entries: Sequence[Mapping[str, Any]], path: Path, network: Network = Network.NONE
) -> tuple[Stage, ...]:
    """The stages that the `[[stage]]` tables of the file `path` describe. Raises as `load` does."""
    directory = path.absolute().parent
    return tuple(
        _stage(Table(entry, f"{path}, stage {number}"), directory, network)
        for number, entry in enumerate(entries, start=1)
    )


def _stage(table: Table, directory: Path, network: Network) -> Stage:
    name = table.required("name", tables.text)
    table.where = f"{table.where} ({name!r:.80})"
    table.allow("name", "run", "files", "git", "env", "cwd", "network", "timeout_s")
    files = [_file(table.inner("files", each), directory) for each in _inputs(table, "files")]
    git = [_git(table.inner("git", each), directory) for each in _inputs(table, "git")]
    return table.checked(
        None,
        lambda: Stage(
            name=name,
            run=tuple(table.optional("run", tables.texts_or_one) or ()),
            files=tuple(files),
            git=tuple(git),
            env=table.optional("env", tables.environment) or {},
            cwd=table.optional("cwd", tables.text),
            network=table.optional("network", _network) or network,
            timeout_s=table.optional("timeout_s", tables.positive) or DEFAULT_STAGE_TIMEOUT_S,
        ),
    )


def _inputs(table: Table, key: str) -> list[dict[str, Any]]:
    return table.optional(key, tables.tables_or_one) or []


def _file(table: Table, directory: Path) -> FileInput:
    table.allow("source", "target")
    source, target = table.required("source", tables.text), table.required("target", tables.text)
    return table.checked(None, lambda: FileInput(str(directory / source) if source else source, target))


def _git(table: Table, directory: Path) -> GitInput:
    table.allow("url", "commit", "target")
    url, commit, target = (table.required(key, tables.text) for key in ("url", "commit", "target"))
    local = url and not _REMOTE.match(url)
    return table.checked(None, lambda: GitInput(str(directory / url) if local else url, commit, target))


def _base(base: str, directory: Path) -> str:
    """The base with its path, if it has one, made absolute."""
    kind, _, rest = base.partition(":")
    if not rest or kind not in ("dir", "tar", "oci") or (kind == "oci" and rest.startswith(_FETCHED)):
        return base
    return f"{kind}:{directory / rest}"


def _network(value: Any) -> Network:
    if value not in _NETWORKS:
        raise InvalidRequest(f"{value!r:.80} is not a network", hint=f"use {' or '.join(_NETWORKS)}")
    return Network(value)
