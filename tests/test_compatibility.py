"""docs/compatibility.md agrees with the dispatch tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cometmq.broker.dispatch import TABLE as BROKER_TABLE
from cometmq.nameserver.dispatch import TABLE as NAME_SERVER_TABLE
from cometmq.proto.codes import RequestCode
from cometmq.proto.commands.table import BROKER_COMMANDS, NAME_SERVER_COMMANDS

if TYPE_CHECKING:
    from collections.abc import Collection

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"
STATES = {"works", "later", "refused"}


class Documented(NamedTuple):
    """One row of the page."""

    code: int
    name: str
    state: str
    notes: str


class Server(NamedTuple):
    """A server, which has one section of the page."""

    section: str
    served: Collection[int]
    """The codes of its dispatch table."""
    known: Collection[int]
    """The codes that a peer may send to it; each has a row."""


SERVERS = [
    Server("Name server", NAME_SERVER_TABLE, NAME_SERVER_COMMANDS),
    Server("Broker", BROKER_TABLE, BROKER_COMMANDS),
]


def rows(section: str) -> list[Documented]:
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| (.*?) ?\|$", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^\| \d", text, re.MULTILINE)), "a row is out of form"
    return [Documented(int(code), name, state, notes) for code, name, state, notes in found]


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.section)
def test_each_code_has_one_row_in_order_and_under_its_name(server: Server) -> None:
    documented = rows(server.section)
    assert [row.code for row in documented] == sorted(server.known)
    assert [row.name for row in documented] == [RequestCode(row.code).name for row in documented]
    assert {row.state for row in documented} <= STATES


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.section)
def test_what_the_page_says_works_is_what_is_served(server: Server) -> None:
    works = {row.code for row in rows(server.section) if row.state == "works"}
    assert works == set(map(int, server.served))


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.section)
def test_what_is_not_served_has_a_reason(server: Server) -> None:
    assert [row for row in rows(server.section) if row.state != "works" and not row.notes] == []


def test_every_section_of_codes_is_tested() -> None:
    text = PAGE.read_text()
    with_tables = [part.splitlines()[0] for part in text.split("\n## ")[1:] if "\n| Code |" in part]
    assert with_tables == [server.section for server in SERVERS]
