"""The documentation: links resolve, and named files exist. `test_doc_blocks.py` runs the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```.*?```", re.S)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings as GitHub names them, and explicit ones."""
    text = CODE.sub("", page.read_text())
    headings = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in re.findall(r"^#+ (.*)$", text, re.M))
    return {heading.replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_resolves(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())) if "://" not in link]

    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md"])
def test_every_module_that_a_page_names_exists(page: str) -> None:
    named = re.findall(r"[\w/]+\.py", (ROOT / page).read_text())

    assert len(named) > 20
    assert [path for path in named if not (ROOT / "magent2" / path).exists()] == []


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_every_page_but_the_index_is_in_the_index(folder: str) -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / folder / "README.md").read_text()))

    assert {page.name for page in (ROOT / folder).glob("*.md")} - linked == {"README.md"}
