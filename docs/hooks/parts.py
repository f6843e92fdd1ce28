"""Pages of the reference that follow from parts and commands, results, and the notebooks."""

from __future__ import annotations

import argparse
import html
import inspect
import re
import runpy
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from part_text import cell, described, settings_of

from fedre_privacy.__main__ import COMMANDS as SCRIPTS
from fedre_privacy.active_server.base import steerings
from fedre_privacy.active_server.detectors.base import detectors
from fedre_privacy.attacks.shadow_attacks.base import shadow_attacks
from fedre_privacy.cli.subcommands import inside
from fedre_privacy.core.registry import Registry
from fedre_privacy.data.base import datasets
from fedre_privacy.defenses.base import defenses
from fedre_privacy.entanglement.base import schemes
from fedre_privacy.eval.metrics.base import metrics
from fedre_privacy.partition.base import partitions
from fedre_privacy.protocols.base import protocols

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "results"
AT_THE_TOP = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages that lie where people look for them first: at the top of the repository."""

PAGES: dict[str, tuple[str, str, Registry]] = {
    "protocols": ("Protocols", "what `--protocol` takes", protocols),
    "schemes": ("Entanglement schemes", "what `--scheme` takes", schemes),
    "defences": ("Defences", "what `--defense` takes", defenses),
    "steerings": ("Steerings of an active server", "what `--steering` takes", steerings),
    "detectors": ("Detectors of active servers", "what `fp.twins` tries", detectors),
    "shadow-attacks": ("Shadow attacks", "what `fedre-membership --attack` takes", shadow_attacks),
    "metrics": ("Metrics", "what `--metrics` takes", metrics),
    "datasets": ("Data sets", "what `--dataset` takes", datasets),
    "partitions": ("Partitions", "what `--partition` takes", partitions),
}

COMMANDS = {
    f"fedre-{name}": {"": name} | {word: at for word, (at, _) in inside(f"fedre-{name}").items()}
    for name in SCRIPTS
}
"""By command: its first words, and the module in `fedre_privacy.cli` that has their parser."""


def page(title: str, what: str, registry: Registry) -> str:
    """The text of a page: what there is, then an entry a part of its docstring and settings."""
    own = {name: registry.get(name) for name in registry.names()}
    own = {n: part for n, part in own.items() if part.__module__.startswith("fedre_privacy.")}
    lines = [f"# {title}", "", f"Names are {what}.", ""]
    lines += ["| name | what it is | when to use it |", "|---|---|---|"]
    for name, part in own.items():
        first = (inspect.getdoc(part) or "").split("\n\n")[0]
        lines.append(f"| [{name}](#{name}) | {cell(first)} | {cell(part.when_to_use)} |")
    for name, part in own.items():
        lines += ["", f"## {name}", "", *described(inspect.getdoc(part) or ""), ""]
        lines += [*settings_of(part), ""]
        lines += [f"In Python: `{part.__module__}.{part.__qualname__}`"]
    return "\n".join(lines)


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a parser, a table for each of its groups."""
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        shown = [one for one in group._group_actions if one.help != argparse.SUPPRESS]
        if not shown:
            continue
        yield from ("", f"**{(group.title or 'options').capitalize()}**", "")
        yield from ("| option | what it does |", "|---|---|")
        for action in shown:
            value = formatter._format_args(action, action.dest.upper())
            after = f" {value}" if action.nargs != 0 else ""
            names = ", ".join(f"`{name}{after}`" for name in action.option_strings) or f"`{value}`"
            says = html.escape(formatter._expand_help(action) if action.help else "", quote=False)
            yield f"| {names} | {says.replace('|', chr(92) + '|')} |"


def command_page(name: str) -> str:
    """The text of a command's page, from its parsers."""
    lines = [f"# {name}", ""]
    for words, module in COMMANDS[name].items():
        parser = import_module(f"fedre_privacy.cli.{module}").parser()
        if words:
            lines += [f"## {name} {words}", ""]
        lines += [html.escape(parser.description or "", quote=False), ""]
        lines += ["```text", parser.format_usage().strip(), "```", *options_of(parser), ""]
        lines += [html.escape(parser.epilog or "", quote=False), ""]
    return "\n".join(lines)


BESIDE = re.compile(r"\]\(\.\./(notebooks|results)/")


GALLERY_ON = ("index.md", "benchmarks.md")
TO_GALLERY = (
    "Every attack of every protocol in one page, to search and compare: [gallery](gallery.html)."
)


def gallery_page() -> str:
    """The page of all results over the published frontier (`results/gallery.py`)."""
    with tempfile.TemporaryDirectory() as folder:
        write = runpy.run_path(str(RESULTS / "gallery.py"))["write"]
        return str(write(Path(folder) / "gallery.html").read_text(encoding="utf-8"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What lies beside the documentation in the repository lies below it in the site."""
    return BESIDE.sub(r"](\1/", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, those at the top of the repository, and the notebooks."""
    pages = "|".join(AT_THE_TOP)
    for name in AT_THE_TOP:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        text = re.sub(rf"\]\(({pages})", lambda m: f"]({m[1].lower()}", text)
        files.append(File.generated(config, name.lower(), content=text))
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        where = f"notebooks/{notebook.name}"
        files.append(File.generated(config, where, content=notebook.read_bytes()))
    for result in sorted(RESULTS.glob("*.md")):
        text = result.read_text(encoding="utf-8").replace("](../docs/", "](../")
        if result.name in GALLERY_ON:
            text = text.replace("\n\n", f"\n\n{TO_GALLERY}\n\n", 1)
        files.append(File.generated(config, f"results/{result.name}", content=text))
    gallery = "results/gallery.html"
    files.append(File.generated(config, gallery, content=gallery_page()))
    for beside in sorted((*RESULTS.glob("data/*.csv"), *RESULTS.glob("figures/*.svg"))):
        where = f"results/{beside.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, where, content=beside.read_bytes()))
    for name in COMMANDS:
        files.append(File.generated(config, f"reference/{name}.md", content=command_page(name)))
    for name, (title, what, registry) in PAGES.items():
        text = page(title, what, registry)
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files
