"""What a format needs that is not installed is told before Spark is started."""

from __future__ import annotations

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs import extras
from cometmq.pipeline.jobs.archive import ArchiveSettings


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_format_names_its_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def found(_name: str) -> None:
        """Find nothing."""

    monkeypatch.setattr(extras, "find_spec", found)
    with pytest.raises(OptionError, match=rf"^format: .* pip install 'cometmq\[{name}\]'"):
        ArchiveSettings(nameserver="h:1", topic="T", to="/archive", format=name)
    ArchiveSettings(nameserver="h:1", topic="T", to="/archive")
