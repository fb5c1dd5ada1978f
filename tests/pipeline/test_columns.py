from __future__ import annotations

import subprocess
import sys

import pytest

from cometmq.pipeline.columns import (
    ALL_COLUMNS,
    COLUMNS,
    DEFAULT_COLUMNS,
    checked_columns,
    chosen_columns,
    ddl,
    schema_of,
)
from cometmq.pipeline.errors import DamagedRecordError, OptionError
from cometmq.pipeline.store import index, queues, survey

IMPORTED = """
import sys
sys.modules["isal"] = None  # Used where it is.
before = set(sys.modules)
import numpy, pyarrow
known = {name.partition(".")[0] for name in sys.modules}
import cometmq.pipeline.records
from cometmq.pipeline.store import index, queues, scan, survey
more = {name.partition(".")[0] for name in sys.modules} - known - set(sys.stdlib_module_names)
ours = {name for name in sys.modules if name.startswith("cometmq.")}
print(sorted(more), sorted(name for name in ours if not name.startswith("cometmq.pipeline")))
"""


def test_columns_are_chosen_by_a_text() -> None:
    assert chosen_columns("body, topic") == ("body", "topic")
    assert chosen_columns("*") == chosen_columns(" * ") == ALL_COLUMNS
    assert chosen_columns(None) == chosen_columns(" ") == DEFAULT_COLUMNS


def test_the_default_has_what_a_message_says_in_the_order_of_all() -> None:
    about_the_record = {
        *("size", "unique_key", "offset_id", "sys_flag", "born_host", "store_host"),
        *("prepared_offset", "body_crc", "body_size"),
    }
    assert [name for name in ALL_COLUMNS if name not in about_the_record] == list(DEFAULT_COLUMNS)
    for table in (queues.COLUMNS, index.COLUMNS, survey.COLUMNS):
        assert chosen_columns("", table) == tuple(table)


def test_an_unknown_column_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(OptionError, match="there is no column 'boddy'; there are topic, broker"):
        chosen_columns("topic, boddy")
    with pytest.raises(OptionError, match="named twice"):
        checked_columns(["topic", "topic"])
    with pytest.raises(OptionError, match="no column is named"):
        checked_columns([])


def test_both_schemas_have_the_columns_that_are_asked_for_in_that_order() -> None:
    assert ddl(("properties", "topic")) == "properties MAP<STRING, STRING>, topic STRING"
    assert ddl(("born_time",)) == "born_time TIMESTAMP_LTZ"  # Whatever TIMESTAMP means to Spark.
    assert schema_of(COLUMNS, ("properties", "topic")).names == ["properties", "topic"]


def test_what_reads_records_imports_nothing_that_an_executor_may_lack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "['cometmq'] []"


def test_the_place_of_damage_survives_the_way_from_an_executor() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(DamagedRecordError(7, "it is torn", "segment")))
    assert (error.position, error.reason, error.source) == (7, "it is torn", "segment")
    assert str(error) == "segment: no sound record at 7: it is torn"
