"""Adds the pages that are made from code to the site, and lists them in its navigation (a hook of MkDocs)."""

from __future__ import annotations

import re
from typing import Any

import reference_pages
import solver_pages
from mkdocs.structure.files import File, Files

from ctmc import registry

BOOSTS = {
    "how-to/": 3,
    "tutorial": 3,
    "index": 3,
    "theory": 3,
    "changes": 0.1,
    "contributing": 0.1,
    "figures": 0.1,
    "joss": 0.1,
    "release": 0.1,
}
"""Beginning of an address -> how much a hit there counts in the search."""


def on_config(config: Any) -> Any:
    """List the page of every solver after that of all solvers."""
    for section in config.nav:
        if pages := section.get("Solvers"):
            pages += [{name: f"solvers/{name}.md"} for name in registry.solver_names()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures that do not lie in docs."""
    for address, text in made().items():
        files.append(File.generated(config, address, content=text))
    for picture in ("which_solver.svg", "stationary_scale.png"):
        path = str(reference_pages.HOME / "benchmarks" / picture)
        files.append(File.generated(config, picture, abs_src_path=path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show the name of a file over its block, and let the search find how something is done before what has changed."""
    address = page.file.src_uri
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if address.startswith(start)), 1)}
    return re.sub(r"^<!-- file: (\S+) -->\n```(\w+)$", r'```\2 title="\1"', markdown, flags=re.MULTILINE)


def made() -> dict[str, str]:
    """Return the text of each page that is made, by its address."""
    pages = {
        "solvers/index.md": solver_pages.index_page(),
        "reference/builders.md": reference_pages.builders_page(),
        "reference/commands.md": reference_pages.commands_page(),
        "reference/studies.md": reference_pages.studies_page(),
        "figures.md": reference_pages.relocated("benchmarks/README.md"),
        "changes.md": reference_pages.relocated("CHANGELOG.md"),
        "contributing.md": reference_pages.relocated("CONTRIBUTING.md"),
    }
    pages |= {f"solvers/{name}.md": solver_pages.solver_page(name) for name in registry.solver_names()}
    return pages | {f"reference/{page}.md": reference_pages.python_page(page) for page in reference_pages.GROUPS}
