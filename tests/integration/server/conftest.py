"""A node with cells, in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import SubstrateUnavailable
from support.nodes import ServedNode, served_node


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedNode]:
    try:
        async with served_node(tmp_path, resume_s=2.0) as node:
            yield node
    except SubstrateUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
async def host(served: ServedNode) -> AsyncIterator[dutyfree.RemoteHost]:
    async with served.host() as host:
        yield host


@pytest.fixture(autouse=True)
async def tidy() -> AsyncIterator[None]:
    """Clients and nodes leave no task and no descriptor behind."""
    tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    yield
    for _ in range(100):
        left = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        if len(left) <= tasks and len(os.listdir("/proc/self/fd")) <= descriptors:  # noqa: PTH208
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"tasks {left}; {len(os.listdir('/proc/self/fd'))} descriptors, {descriptors} before")  # noqa: PTH208
