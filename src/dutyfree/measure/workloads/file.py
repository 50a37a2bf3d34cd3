"""Workloads as TOML files.

::

    name = "mine"
    title = "what it is, in a few words"

    [[stage]]                       # as in a recipe; a path may begin with "~/", and a source with "material:"
    name = "repository"
    files = { source = "project", target = "~/project" }
    run = ["make -C ~/project"]
    env = { LC_ALL = "C.UTF-8" }    # for this stage, later ones, and all actions

    [mix]                           # the kinds of the menu, and how often each is drawn
    inspect = 0.8
    edit = 0.2

    [[opening]]                     # these come first, in this order
    name = "list"
    kind = "inspect"
    run = "ls ~/project"            # a shell line, or a list: a program and its arguments
    expect = { exit_code = 0, contains = ["Makefile"] }

    [[menu]]                        # any of these comes after them, as often as the trajectory is long
    ...

Paths of this machine are relative to the file. Every action states what it expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dutyfree import tables
from dutyfree.errors import InvalidRequest
from dutyfree.images.recipes.file import parse_stages
from dutyfree.images.recipes.readiness import HOME
from dutyfree.measure.workloads import materials
from dutyfree.measure.workloads.actions import read_action, read_name, read_share
from dutyfree.measure.workloads.workload import ActionKind, ScriptedAction, Workload
from dutyfree.model import FileInput, Recipe, Stage
from dutyfree.tables import Table

MAX_ACTIONS: Final = 1000
"""In the opening, and in the menu."""


def load_workload(path: Path | str) -> Workload:
    """The workload in a TOML file. Raises InvalidRequest, which names the file and, where it can, action and key."""
    path = Path(path)
    return parse(tables.read_document(path, "workload"), path)


def parse(document: Mapping[str, Any], path: Path) -> Workload:
    """What the TOML `document` says; paths in it are relative to `path`, its file. Raises as `load_workload` does."""
    table = Table(document, str(path))
    table.allow("name", "title", "stage", "mix", "opening", "menu")
    name, title = table.required("name", read_name), table.optional("title", tables.text) or ""
    stages = _stages(table, path)
    env = {key: value for stage in stages for key, value in stage.env.items()}
    opening, menu = _actions(table, "opening", env), _actions(table, "menu", env)
    mix = _mix(table.inner("mix", table.optional("mix", tables.table) or {}))
    return table.checked(None, lambda: Workload(name, title, stages, opening, menu, mix))


def _stages(table: Table, path: Path) -> tuple[Stage, ...]:
    entries = [_at_home(entry) for entry in table.optional("stage", tables.tables) or []]
    stages = tuple(_with_materials(stage, path) for stage in parse_stages(entries, path))
    table.checked("stage", lambda: Recipe(stages=stages))  # the ladder's order, and what else holds for all of them
    return stages


def _at_home(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a stage with absolute paths for those in "~/"; what is wrong with it is not said here."""
    return {key: _absolute(value) if key in ("files", "git", "cwd") else value for key, value in entry.items()}


def _absolute(value: Any) -> Any:
    if isinstance(value, str):
        return HOME + value[1:] if value == "~" or value.startswith("~/") else value
    if isinstance(value, list):
        return [_absolute(each) for each in value]
    if isinstance(value, dict) and "target" in value:
        return {**value, "target": _absolute(value["target"])}
    return value


def _with_materials(stage: Stage, path: Path) -> Stage:
    """The stage with the names of materials as they were written: the recipe's reader took them for paths."""
    directory = str(path.absolute().parent / materials.MARK)

    def named(given: FileInput) -> FileInput:
        is_material = given.source.startswith(directory)
        return replace(given, source=materials.MARK + given.source[len(directory) :]) if is_material else given

    return replace(stage, files=tuple(named(given) for given in stage.files))


def _actions(table: Table, key: str, env: Mapping[str, str]) -> tuple[ScriptedAction, ...]:
    entries = table.optional(key, tables.tables) or []
    if len(entries) > MAX_ACTIONS:
        raise InvalidRequest(f"{table.where}, {key}: there are {len(entries)} actions; at most {MAX_ACTIONS} are taken")
    actions = tuple(
        read_action(table.inner(f"{key} {number}", entry), env, own="weight" if key == "menu" else "think_s")
        for number, entry in enumerate(entries, start=1)
    )
    names = [action.name for action in actions]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"{table.where}, {key}: two actions are called {name!r}")
    return actions


def _mix(table: Table) -> dict[ActionKind, float]:
    table.allow(*ActionKind)
    return {ActionKind(key): table.required(key, read_share) for key in table.content}
