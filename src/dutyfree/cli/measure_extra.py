"""The extra `measure`: packages that analyses need and a plain installation lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dutyfree.errors import InvalidRequest

PACKAGES: Final = ("numpy", "scipy", "matplotlib", "pyarrow", "jinja2")


@contextmanager
def measure_extra() -> Iterator[None]:
    """Wraps the imports of an analysis. Raises InvalidRequest, with what to install, if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        raise InvalidRequest(f"{package} is not installed", hint="pip install 'dutyfree[measure]'") from error
