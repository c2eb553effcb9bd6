"""The pages of the site that are not in docs/: made from the code, or standing elsewhere in the tree.

MkDocs calls the functions that begin with `on_`. Commands are read from the command line itself, names of the
Python API from what `remuda` and `remuda.devices` export: a page cannot be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter
from typer.main import get_command

import remuda
import remuda.devices
from remuda.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
DECISIONS = "decisions"
# Pages that stand elsewhere, by their names on the site.
ELSEWHERE = {
    "index.md": "README.md",
    "bench.md": "bench/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
# What a page of the reference holds: a title, an introduction, modules whose exported names stand there, and
# names in full.
REFERENCE: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "queues": (
        "Queues",
        "What a program adds jobs to and looks into: with an event loop, and without one.",
        ("remuda.queue", "remuda.sync"),
        (
            "remuda.dead_letters.DeadLetters",
            "remuda.repeats.Repeats",
            "remuda.schedule.Repeat",
            "remuda.schedule.Repeating",
            "remuda.schedule.Missed",
        ),
    ),
    "workers": (
        "Workers",
        "What runs handlers, every option, and what a handler is given.",
        ("remuda.worker",),
        ("remuda.worker.options.WorkerOptions",),
    ),
    "messages": (
        "Messages",
        "Jobs as they are added and as a store has them, and what is told of them.",
        ("remuda.message", "remuda.codec", "remuda.lifecycle", "remuda.transition"),
        (),
    ),
    "retries": (
        "Retries and rates",
        "When a job is tried again, and how often jobs run.",
        ("remuda.retry", "remuda.rate"),
        (),
    ),
    "errors": ("Errors", "What is raised, and what it means.", ("remuda.errors",), ()),
    "stores": (
        "Stores",
        "The contract that every store keeps, for those who write one or go beneath a queue.",
        ("remuda.stores",),
        (
            "remuda.stores.contract.Store",
            "remuda.stores.contract.Capabilities",
            "remuda.stores.contract.Delivery",
            "remuda.stores.contract.Settlement",
        ),
    ),
    "lake": (
        "The lake",
        "What the commands of `remuda lake` call, for notebooks and programs of your own.",
        (),
        (
            "remuda.lake.place.Lake",
            "remuda.lake.session.open_session",
            "remuda.lake.session.session",
            "remuda.lake.ingest.ingest",
            "remuda.lake.ingest.trim",
            "remuda.lake.build.build",
            "remuda.lake.audit.audit",
            "remuda.lake.generate.generate",
            "remuda.lake.generate.Faults",
        ),
    ),
    "testing": (
        "Testing",
        "For tests of your own code.",
        (),
        ("remuda.testing.InlineQueue", "remuda.clock.VirtualClock"),
    ),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The decisions come to the end of the menu, by their numbers."""
    records = [f"{DECISIONS}/{path.name}" for path in sorted((ROOT / "docs" / DECISIONS).glob("*.md"))]
    about = next(part["About"] for part in config.nav or [] if isinstance(part, dict) and "About" in part)
    about.append({"Decisions": [f"{DECISIONS}/index.md", *records]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {place: (ROOT / source).read_text() for place, source in ELSEWHERE.items()}
    pages[f"{DECISIONS}/index.md"] = _decisions()
    pages["reference/commands.md"] = _commands()
    pages["reference/devices.md"] = _reference(
        "Devices",
        "What `remuda.devices` has for programs that send commands and carry them.",
        _exported(remuda.devices._HOMES),
    )
    for page, (title, introduction, modules, names) in REFERENCE.items():
        exported = _exported({module: remuda._HOMES[module] for module in modules})
        pages[f"reference/{page}.md"] = _reference(title, introduction, [*exported, *names])
    forgotten = set(remuda._HOMES) - {module for _, _, modules, _ in REFERENCE.values() for module in modules}
    if forgotten:
        raise SystemExit(f"the reference says nothing of {', '.join(sorted(forgotten))}")
    pages["pygments.css"] = _colours()
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as they are right in the tree, made right on the site."""
    place = page.file.src_uri
    home = "../" * place.count("/")
    elsewhere = {source: name for name, source in ELSEWHERE.items()}
    folder = Path(ELSEWHERE.get(place, f"docs/{place}")).parent

    def mended(link: re.Match[str]) -> str:
        target, anchor = link[2], link[3] or ""
        path = _normal(folder / target)
        if path == f"docs/{DECISIONS}":
            return f"{link[1]}({home}{DECISIONS}/index.md{anchor})"
        if path in elsewhere:
            return f"{link[1]}({home}{elsewhere[path]}{anchor})"
        if path.startswith("docs/"):
            return f"{link[1]}({home}{path.removeprefix('docs/')}{anchor})"
        if (ROOT / path).exists():
            return f"{link[1][1:-1]} (`{path}`)"  # a file of the tree, which the site has not
        return link[0]

    return re.sub(r"(\[[^\]\n]*\])\(((?!https?:|mailto:|#)[^)#\s]+)(#[^)\s]*)?\)", mended, markdown)


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


# -- pages


def _decisions() -> str:
    lines = ["# Decisions", "", "What was decided, why, and what else was thought of.", ""]
    for path in sorted((ROOT / "docs" / DECISIONS).glob("*.md")):
        title = path.read_text().splitlines()[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines)


def _colours() -> str:
    """Colours of code, by day and by night."""
    night = HtmlFormatter(style="github-dark").get_style_defs("[data-bs-theme=dark] .highlight")
    return f"{HtmlFormatter(style='default').get_style_defs('.highlight')}\n{night}\n"


def _exported(homes: dict[str, tuple[str, ...]]) -> list[str]:
    return [f"{module}.{name}" for module, names in homes.items() for name in names]


def _reference(title: str, introduction: str, names: list[str]) -> str:
    parts = [f"# {title}", introduction, *(f"::: {name}" for name in names)]
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    """Every command with its help, arguments and options, as the command line has them."""
    introduction = (
        "Every command and option, made from the command line itself; [the guide](../command-line.md) shows "
        "them at work."
    )
    parts = ["# Commands", introduction]
    for path, command in _walk(get_command(app), "remuda"):
        parts += [f"## {path}", _prose(command.help or "")]
        rows = [_row(each) for each in command.params if not getattr(each, "hidden", False) and _shown(each)]
        if rows:
            parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    subcommands = getattr(command, "commands", None)
    if not subcommands:
        yield path, command
        return
    for name, each in subcommands.items():
        yield from _walk(each, f"{path} {name}")


def _shown(parameter: Any) -> bool:
    return parameter.name not in ("help", "install_completion", "show_completion")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        words = ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])
        names = words if parameter.is_flag else f"{words} `{parameter.metavar or 'VALUE'}`"
    told = (parameter.help or "").replace("|", "\\|").replace("\n", " ")
    default = parameter.default
    is_told = parameter.show_default is not False and not callable(default)
    if is_told and default not in (None, False, True, ()):
        told += f" Default: `{getattr(default, 'value', default)}`."
    if parameter.envvar:
        told += f" Variable: `{parameter.envvar}`."
    return f"| {names} | {told} |"


def _prose(text: str) -> str:
    """Help as a page has it: what was laid out by hand stays so."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append("```text\n" + paragraph.lstrip("\b\n") + "\n```")
        else:
            paragraphs.append(re.sub(r"\s+", " ", paragraph).strip())
    return "\n\n".join(paragraphs)
