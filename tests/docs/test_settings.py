"""The page of settings matches the sources."""

from __future__ import annotations

from tests.docs.settings_page import PAGE, page

from cometmq.broker.settings import PART_OF
from cometmq.nameserver.config import SETTINGS


def test_the_page_is_what_the_sources_say() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.docs.settings_page"


def test_the_defaults_are_those_of_the_programs() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `metrics_port` |")]
    assert [row.split(" | ")[1] for row in rows] == ["`5557`", "`5558`"]
    assert "None" not in page(), "the word that is read is off"


def test_every_setting_has_a_row_with_a_reason() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    assert {row[0].strip("| `*\\") for row in rows} == {*PART_OF, *SETTINGS}
    assert all(len(row[3]) > 10 for row in rows)
