"""A histogram of durations onto the even cells of a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from remuda.lake.buckets import middle_of
from remuda.lake.report.data import Histogram
from remuda.lake.report.plots.axes import NO_TIME


def bounds_of(bucket: int) -> tuple[float, float]:
    """The durations that a bucket stands for, in milliseconds: halfway to its neighbours."""
    middle = middle_of(bucket)
    high = (middle + middle_of(bucket + 1)) / 2
    # What took no millisecond has no place on a logarithmic axis but the one that was made for it.
    low = (middle_of(bucket - 1) + middle) / 2 if bucket else NO_TIME * 1.1
    return low, high


def spread(histogram: Histogram, low: float, high: float, cells: int) -> list[float]:
    """How many fall into each of the cells between `low` and `high`; a bucket counts where it reaches."""
    counts = [0.0] * cells
    start, size = log(low), (log(high) - log(low)) / cells
    for bucket, count in histogram.items():
        least, most = ((log(edge) - start) / size for edge in bounds_of(bucket))
        least, most = min(max(least, 0.0), cells - 1e-6), min(max(most, 1e-6), float(cells))
        _share_out(counts, count, least, max(most, least + 1e-9))
    return counts


def _share_out(counts: list[float], count: int, least: float, most: float) -> None:
    for cell in range(int(least), min(int(most), len(counts) - 1) + 1):
        overlap = min(most, cell + 1) - max(least, cell)
        counts[cell] += count * max(0.0, overlap) / (most - least)


def smoothed(values: Sequence[float], width: float) -> list[float]:
    """The values blurred by a bell curve of that width in cells; their sum stays, save at the edges."""
    reach = int(3 * width) + 1
    bell = [exp(-((n / width) ** 2) / 2) for n in range(-reach, reach + 1)]
    total = sum(bell)
    padded = [0.0] * reach + list(values) + [0.0] * reach
    return [
        sum(weight * padded[at + n] for n, weight in enumerate(bell)) / total for at in range(len(values))
    ]
