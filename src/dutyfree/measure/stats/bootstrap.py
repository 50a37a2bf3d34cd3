"""The block bootstrap: what a mean could have been, had other blocks of the same kind been run.

Whole blocks are drawn, with replacement, so that whatever its trials share (the moment, the machine's mood, one wave of
concurrent sandboxes) stays together. All of it is matrix products over counts of how often each block was drawn.
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
"""Below so many even all that was seen, from the least to the most, covers a centre less often than in 95 %."""
ERROR: Final = 0.05
_CHUNK: Final = 4_000_000
_CACHED_BLOCKS: Final = 128
"""Most conditions have the same few numbers of blocks; drawing anew for each would take most of the time."""

Values = NDArray[np.float64]


def resampled_means(sums: Values, counts: Values, seed: int, *, stream: int = 0) -> Values:
    """Means of each column over blocks drawn anew: resamples x columns.

    `sums` and `counts` are blocks x columns: what the block's values add up to, and how many they are. Equal arguments
    give equal means; columns share the draw, so that their differences are paired; two streams are independent.
    """
    both = np.hstack([sums, counts])
    drawn = np.concatenate([weights @ both for weights in _weights(len(both), seed, stream)])
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Values = drawn[:, : sums.shape[1]] / drawn[:, sums.shape[1] :]
    return means


def percentile_interval(means: Values, blocks: int) -> tuple[float | None, float | None]:
    """The 95 % interval from resampled values, or (None, None) below 6 blocks; an infinite end is None.

    Plain percentiles are too narrow for few blocks, as a z interval is against a t interval; they are taken further out
    by just that much (Hesterberg 2015, "expanded percentile").
    """
    usable = means[~np.isnan(means)]
    if blocks < LEAST_BLOCKS or not len(usable):
        return None, None
    tail = expanded_tail(blocks)
    low, high = (float(end) for end in np.quantile(usable, (tail, 1 - tail), method="nearest"))
    return (low if np.isfinite(low) else None), (high if np.isfinite(high) else None)


@lru_cache(maxsize=1024)
def expanded_tail(blocks: int) -> float:
    """How much of the resampled values is left out at either end."""
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
