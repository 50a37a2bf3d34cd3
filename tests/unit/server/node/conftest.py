"""A node on the `process` substrate: fast, and on every machine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.nodes import ServedNode, served_node


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedNode]:
    async with served_node(tmp_path, "process", resume_s=0.5) as node:
        yield node
