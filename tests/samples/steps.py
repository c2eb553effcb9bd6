"""What is run of a document: its samples, each after what it takes for granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from tests.samples.reading import samples_of


class Step(TypedDict):
    """A sample, or what one takes for granted."""

    line: int
    language: str
    source: str
    is_compared: bool


def steps_of(
    document: Path, given: Mapping[tuple[str, str, int], str], *, with_spark: bool = False
) -> list[Step]:
    """The steps that need Spark, or those that do not. `given` goes by document, heading and number there."""
    steps: list[Step] = []
    seen: Counter[str] = Counter()
    for sample in samples_of(document):
        seen[sample.heading] += 1
        if not sample.is_run or sample.needs_spark != with_spark:
            continue
        before = given.get((sample.document, sample.heading, seen[sample.heading]))
        if before is not None:
            steps.append(Step(line=sample.line, language="python", source=before, is_compared=False))
        steps.append(
            Step(
                line=sample.line,
                language=sample.language,
                source=sample.source,
                is_compared=sample.mark is None,
            )
        )
    return steps
