"""What the documents name exists: tests, files and headings that they point to."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
TEST = re.compile(r"\b(tests/[\w/]+\.py)(?:::(\w+))?")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def functions(path: str) -> frozenset[str]:
    """Names of the functions of a test file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@cache
def headings(path: Path) -> frozenset[str]:
    """Names of a page's headings in addresses, as repositories' viewers make them."""
    lines = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL).splitlines()
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("#")]
    return frozenset(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_are_named_exist(page: str) -> None:
    for path, function in TEST.findall((ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), f"{page} names {path}, which does not exist"
        assert not function or function in functions(path), f"{page} names {path}::{function}, which does not exist"


def test_the_page_of_exactness_names_a_test_for_each_line() -> None:
    text = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    table = text.partition("| what is claimed | test |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) > 10
    for line in table:
        claim, tests = line.strip("| ").split(" | ")
        assert TEST.search(tests), f"no test is named for: {claim}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        assert not anchor or path.suffix != ".md" or anchor in headings(path), f"{page} links to {target}"
