"""The package's own names: all there, and none of them costs anything until it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree


def imported_for_types() -> dict[str, set[str]]:
    """By module: the names that type checkers see."""
    tree = ast.parse(Path(dutyfree.__file__).read_text())
    block = next(each for each in tree.body if isinstance(each, ast.If))
    found = [each for each in block.body if isinstance(each, ast.ImportFrom) and each.module != "dutyfree"]
    return {str(each.module): {name.name for name in each.names} for each in found}


def test_dir_shows_what_users_can_use_and_nothing_else() -> None:
    shown = [name for name in dir(dutyfree) if not name.startswith("__")]
    assert {"local", "sync", "Box", "Resources", "InfraFailed", "load_recipe"} <= set(shown)
    assert set(shown) == {name for name in dutyfree.__all__ if not name.startswith("__")}


@pytest.mark.parametrize("name", dutyfree.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(dutyfree, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    assert imported_for_types() == {module: set(names) for module, names in dutyfree._HOMES.items()}
    found = {name for names in dutyfree._HOMES.values() for name in names}
    assert found | {"__version__", "sync"} == set(dutyfree.__all__)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'locl'"):
        dutyfree.locl  # noqa: B018


def test_importing_the_package_imports_nothing_else() -> None:
    new = "set(sys.modules) - before - {'dutyfree'}"
    program = f"import sys; before = set(sys.modules); import dutyfree; print(sorted({new}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['__future__']\n"
