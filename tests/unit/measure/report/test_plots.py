"""Axes that can be read: the texts of their ticks do not touch, however far the values spread."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dutyfree.measure.report.plots import panel_grid, value_axis


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("most", [3.0, 1e2, 2e3, 3e4, 1e6])
def test_ticks_keep_apart(columns: int, most: float) -> None:
    """From 1.9 ms to `most`, which is a quarter of an hour in the end."""
    figure, grid = panel_grid(columns, columns, 1.5, 0.5)
    for axes in grid:
        value_axis(axes, "x", [1.9, most], room=0.38)
    figure.canvas.draw()
    for axes in grid:
        low, high = axes.get_xlim()
        labels = [each for each in axes.get_xticklabels() if low <= each.get_position()[0] <= high and each.get_text()]
        boxes = [each.get_window_extent() for each in labels]
        assert len(boxes) >= 2
        for left, right in pairwise(boxes):
            assert left.x1 + 2 < right.x0, [each.get_text() for each in labels]
