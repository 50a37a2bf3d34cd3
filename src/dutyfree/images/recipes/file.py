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

Paths of this machine are relative to the file. A `run` that is one string, of however many lines, is one script.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from dutyfree.errors import InvalidRequest
from dutyfree.images.store.names import check_name
from dutyfree.model.limits import Network
from dutyfree.model.recipe import DEFAULT_STAGE_TIMEOUT_S, FileInput, GitInput, Recipe, Stage

_NETWORKS: Final = (Network.NONE, Network.HOST)
"""What cells, which run the lines of recipes, have."""
MAX_FILE_BYTES: Final = 1024 * 1024
_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/]+:")
_FETCHED: Final = ("docker://", "docker-daemon:")

T = TypeVar("T")


def load_recipe(path: Path | str) -> Recipe:
    """The recipe in a TOML file. Raises InvalidRequest, which names the file, and the stage and the key if it can."""
    return load(path)[1]


def load(path: Path | str) -> tuple[str | None, Recipe]:
    """The recipe in a file, and the name that the file gives it.

    Raises InvalidRequest, which names the file and, where it can, the stage and the key.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot read the recipe {str(path)!r}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path}: a recipe has at most {MAX_FILE_BYTES} bytes", hint="give big things as files")
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{path}: not TOML: {error}") from error
    return parse(document, path)


def parse(document: Mapping[str, Any], path: Path) -> tuple[str | None, Recipe]:
    """What the TOML `document` says; `path`, its file, is what paths in it are relative to. Raises as `load` does."""
    table = _Table(document, str(path))
    table.allow("name", "base", "defaults", "stage")
    name = table.optional("name", _text)
    if name is not None:
        table.checked("name", lambda: check_name(name))
    defaults = _Table(table.optional("defaults", _table) or {}, f"{path}, defaults")
    defaults.allow("network")
    network = defaults.optional("network", _network) or Network.NONE
    directory = path.absolute().parent
    stages = [
        _stage(_Table(entry, f"{path}, stage {number}"), directory, network)
        for number, entry in enumerate(table.optional("stage", _tables) or [], start=1)
    ]
    base = table.optional("base", _text) or "host"
    return name, table.checked(None, lambda: Recipe(_base(base, directory), tuple(stages)))


def _stage(table: _Table, directory: Path, network: Network) -> Stage:
    name = table.required("name", _text)
    table.where = f"{table.where} ({name!r:.80})"
    table.allow("name", "run", "files", "git", "env", "cwd", "network", "timeout_s")
    files = [
        _file(each, directory) for each in _inner(table.where, "files", table.optional("files", _tables_or_one) or [])
    ]
    git = [_git(each, directory) for each in _inner(table.where, "git", table.optional("git", _tables_or_one) or [])]
    return table.checked(
        None,
        lambda: Stage(
            name=name,
            run=tuple(table.optional("run", _texts_or_one) or ()),
            files=tuple(files),
            git=tuple(git),
            env=table.optional("env", _environment) or {},
            cwd=table.optional("cwd", _text),
            network=table.optional("network", _network) or network,
            timeout_s=table.optional("timeout_s", _number) or DEFAULT_STAGE_TIMEOUT_S,
        ),
    )


def _file(table: _Table, directory: Path) -> FileInput:
    table.allow("source", "target")
    source, target = table.required("source", _text), table.required("target", _text)
    return table.checked(None, lambda: FileInput(str(directory / source) if source else source, target))


def _git(table: _Table, directory: Path) -> GitInput:
    table.allow("url", "commit", "target")
    url, commit, target = (table.required(key, _text) for key in ("url", "commit", "target"))
    local = url and not _REMOTE.match(url)
    return table.checked(None, lambda: GitInput(str(directory / url) if local else url, commit, target))


def _base(base: str, directory: Path) -> str:
    """The base with its path, if it has one, made absolute."""
    kind, _, rest = base.partition(":")
    if not rest or kind not in ("dir", "tar", "oci") or (kind == "oci" and rest.startswith(_FETCHED)):
        return base
    return f"{kind}:{directory / rest}"


def _inner(where: str, key: str, tables: list[dict[str, Any]]) -> list[_Table]:
    return [_Table(each, f"{where}, {key}") for each in tables]


@dataclass(slots=True)
class _Table:
    """A table of the file, and where it stands, for messages."""

    content: Mapping[str, Any]
    where: str

    def allow(self, *keys: str) -> None:
        for key in self.content:
            if key not in keys:
                raise InvalidRequest(f"{self.where}: there is no key {key!r:.80}", hint=f"use {', '.join(keys)}")

    def required(self, key: str, kind: Callable[[Any], T]) -> T:
        if key not in self.content:
            raise InvalidRequest(f"{self.where}: {key!r} is missing")
        return self.checked(key, lambda: kind(self.content[key]))

    def optional(self, key: str, kind: Callable[[Any], T]) -> T | None:
        return self.required(key, kind) if key in self.content else None

    def checked(self, key: str | None, work: Callable[[], T]) -> T:
        """Do the work; what it refuses is told with the place."""
        try:
            return work()
        except InvalidRequest as error:
            if error.message.startswith(self.where):
                raise
            place = self.where if key is None else f"{self.where}, {key}"
            raise InvalidRequest(f"{place}: {error.message}", hint=error.hint) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"a string is wanted, not {value!r:.80}")
    return value


def _texts_or_one(value: Any) -> list[str]:
    return [_text(each) for each in (value if isinstance(value, list) else [value])]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"a number is wanted, not {value!r:.80}")
    if not value > 0:
        raise InvalidRequest(f"a positive number is wanted, not {value!r:.80}")
    return float(value)


def _network(value: Any) -> Network:
    if value not in _NETWORKS:
        raise InvalidRequest(f"{value!r:.80} is no choice of network", hint=f"use {' or '.join(_NETWORKS)}")
    return Network(value)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"a table is wanted, not {value!r:.80}")
    return value


def _tables(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidRequest(f"a list of tables is wanted, not {value!r:.80}")
    return [_table(each) for each in value]


def _tables_or_one(value: Any) -> list[dict[str, Any]]:
    return _tables(value if isinstance(value, list) else [value])


def _environment(value: Any) -> dict[str, str]:
    return {key: _text(each) for key, each in _table(value).items()}
