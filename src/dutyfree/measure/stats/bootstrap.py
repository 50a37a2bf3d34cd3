"""The block bootstrap: how much a mean would vary if the study were repeated.

Whole blocks are drawn, with replacement, because trials of one block are not independent: they share the moment, the
state of the machine, and the wave of concurrent sandboxes. The computation is a matrix product: how often each block
was drawn, times the sums of each block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

RESAMPLES: Final = 10_000
LEAST_BLOCKS: Final = 6
"""With fewer blocks, even the range of all values covers a median in less than 95 % of cases."""
ERROR: Final = 0.05
_CHUNK: Final = 4_000_000
_CACHED_BLOCKS: Final = 128
"""Draws for up to this many blocks are cached: most conditions have equal numbers of blocks, and drawing is slow."""

Values = NDArray[np.float64]


def resampled_means(sums: Values, counts: Values, seed: int, *, stream: int = 0) -> Values:
    """Means of each column over resampled blocks: resamples x columns.

    `sums` and `counts` are blocks x columns: the sum of the block's values, and their number. Equal arguments give
    equal means. Columns share the draw, so that their differences are paired; different streams are independent.
    """
    both = np.hstack([sums, counts])
    drawn = np.concatenate([weights @ both for weights in _weights(len(both), seed, stream)])
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Values = drawn[:, : sums.shape[1]] / drawn[:, sums.shape[1] :]
    return means


def percentile_interval(means: Values, blocks: int) -> tuple[float | None, float | None]:
    """The 95 % interval from resampled values, or (None, None) below 6 blocks; an infinite end is None.

    Plain percentiles are too narrow for few blocks, as a z interval is narrower than a t interval. The percentiles are
    moved outwards by the same factor (Hesterberg 2015, "expanded percentile").
    """
    usable = means[~np.isnan(means)]
    if blocks < LEAST_BLOCKS or not len(usable):
        return None, None
    tail = expanded_tail(blocks)
    low, high = (float(end) for end in np.quantile(usable, (tail, 1 - tail), method="nearest"))
    return (low if np.isfinite(low) else None), (high if np.isfinite(high) else None)


@lru_cache(maxsize=1024)
def expanded_tail(blocks: int) -> float:
    """The share of the resampled values that lies outside of the interval at each end."""
    reach = stdtrit(blocks - 1, 1 - ERROR / 2) * np.sqrt(blocks / (blocks - 1))
    return float(ndtr(-reach))


def _weights(blocks: int, seed: int, stream: int) -> Iterator[Values]:
    """How often each block was drawn, resamples x blocks, in pieces that fit into memory."""
    if blocks <= _CACHED_BLOCKS:
        yield _cached_weights(blocks, seed, stream)
        return
    numbers = np.random.default_rng((seed, stream, blocks))
    step = max(1, _CHUNK // blocks)
    for start in range(0, RESAMPLES, step):
        yield _drawn(numbers, min(step, RESAMPLES - start), blocks)


@lru_cache(maxsize=16)
def _cached_weights(blocks: int, seed: int, stream: int) -> Values:
    return _drawn(np.random.default_rng((seed, stream, blocks)), RESAMPLES, blocks)


def _drawn(numbers: np.random.Generator, resamples: int, blocks: int) -> Values:
    drawn = numbers.integers(0, blocks, size=(resamples, blocks), dtype=np.int64)
    drawn += blocks * np.arange(resamples, dtype=np.int64)[:, None]
    counted = np.bincount(drawn.ravel(), minlength=resamples * blocks)
    return counted.reshape(resamples, blocks).astype(np.float64)
