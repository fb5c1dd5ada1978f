"""The examples of the README behave as it says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.client.running import play

from cometmq.admin.program import program

REPOSITORY = Path(__file__).parent.parent
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
EXAMPLES = [
    (page.relative_to(REPOSITORY).as_posix(), code)
    for page in PAGES
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
]


NAMESERVER = "127.0.0.1:9876"


@pytest.mark.parametrize(("page", "code"), EXAMPLES)
def test_an_example_runs(page: str, code: str, tmp_path: Path) -> None:
    def run(code: str) -> None:
        exec(compile(code, page, "exec"), {"__name__": page})

    if NAMESERVER in code:
        play(tmp_path, lambda servers: run(code.replace(NAMESERVER, servers.nameserver)))
    else:
        run(code)


def test_the_commands_that_the_pages_show_exist() -> None:
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"^cometmq (?!ready )([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert "send" in shown
    assert shown <= set(program.list_commands(click.Context(program)))


def test_the_readme_has_an_example() -> None:
    assert "README.md" in {page for page, _ in EXAMPLES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:docs|tests|bench|deploy|requirements)/[\w./-]+\w)`", page.read_text())
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_every_target_that_the_pages_name_is_in_the_makefile() -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    )
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text())}
    assert named - targets == set()
