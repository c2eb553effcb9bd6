"""The samples of the documents: what there is to run, and what is marked as not run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])

# Programs, sessions at a terminal, and scripts. Others are settings, or the words of other programs.
RUN = ("python", "console", "sh")

_MARKED = re.compile(
    r"^(?:<!-- (?P<mark>not run|output not compared): (?P<why>.+?) -->\n+)?"
    r"```(?P<language>\w*)\n(?P<source>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Sample(NamedTuple):
    """A sample, the line before it and the heading above it."""

    document: str
    heading: str
    line: int
    language: str
    source: str
    mark: str | None
    why: str | None

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.mark != "not run"

    @property
    def needs_spark(self) -> bool:
        """Whether it belongs to the tests of the lake, which have a session of Spark's at hand."""
        return self.document.startswith("lake") or "remuda lake " in self.source


def samples_of(document: Path) -> list[Sample]:
    text = document.read_text()
    headings = [(each.start(), each[1]) for each in _HEADING.finditer(text)]
    found = [
        Sample(
            document=document.name,
            heading=[name for start, name in headings if start < each.start()][-1],
            line=text.count("\n", 0, each.start("source")),
            language=each["language"],
            source=each["source"],
            mark=each["mark"],
            why=each["why"],
        )
        for each in _MARKED.finditer(text)
    ]
    assert 2 * len(found) == text.count("```"), f"{document.name} has a sample that is not seen"
    return found


def all_samples() -> list[Sample]:
    return [sample for document in DOCUMENTS for sample in samples_of(document)]
