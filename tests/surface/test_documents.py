"""What the documents show is what there is: samples compile, links lead somewhere, tables agree."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from remuda import Queue, Reason, Worker
from remuda.lifecycle import JOB_MOVES
from remuda.worker import WorkerOptions

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_samples_compile(document: Path) -> None:
    for sample in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        compile(sample, document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_option_of_a_worker_is_documented_with_its_default() -> None:
    text = (ROOT / "docs/workers.md").read_text()
    parameters = inspect.signature(Worker).parameters
    for name in WorkerOptions.__struct_fields__:
        assert f"`{name}`" in text, f"docs/workers.md says nothing of {name}"
        default = WorkerOptions.__struct_defaults__[WorkerOptions.__struct_fields__.index(name)]
        assert parameters[name].default == default


def test_every_reason_is_documented() -> None:
    text = (ROOT / "docs/dead-letters.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == {reason.value for reason in Reason}


def test_the_table_of_moves_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs/delivery.md").read_text().split("## Exactly")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([A-Z]+) \|", text, re.MULTILINE)
    shown = {
        (None if left == "—" else left, entered) for lefts, entered in rows for left in lefts.split(", ")
    }
    assert shown == {(left and left.value, entered.value) for left, entered in JOB_MOVES}


def test_adding_documents_every_option() -> None:
    text = (ROOT / "docs/adding-jobs.md").read_text()
    for name in inspect.signature(Queue.add_unique).parameters:
        if name not in ("self", "name", "payload"):
            assert name in text
