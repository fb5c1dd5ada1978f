"""What `deltalake` says, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("deltalake", reason="the extra cometmq[delta] is not installed")

import deltalake

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.delta_tables import DeltaTable

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder


class There:
    """The folder of a table."""

    path = local_path = "/data/orders"
    scheme = "file"

    def has_name(self, *_: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("Connection refused", "format: /data/orders: Generic S3 error: it: Connection refused"),
        ("No space left on device (os error 28)", "path: /data/orders: its disk is full; make"),
    ],
)
def test_what_deltalake_says_of_a_store_is_one_line_without_colours(
    monkeypatch: pytest.MonkeyPatch, cause: str, said: str
) -> None:
    then = "\n   \x1b[31m↳\x1b[0m "

    def load(*_: Any, **__: Any) -> None:
        raise OSError(f"Generic S3 error{then}it{then}{cause}\n")

    monkeypatch.setattr(deltalake, "DeltaTable", load)
    with pytest.raises(PipelineError) as raised:
        DeltaTable(cast("Folder", There()), "format").exists()
    assert str(raised.value).startswith(said)
    assert len(str(raised.value).splitlines()) == 1
