"""Options as Spark gives them: names in lower case, and every value a text."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.option_reading import camel
from cometmq.pipeline.options import (
    ReadOptions,
    WriteOptions,
    read_options,
    read_time_ms,
    write_options,
)
from cometmq.pipeline.store.options import StoreOptions, store_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMESERVER = {"nameserver": "127.0.0.1:9876"}


def test_names_are_told_apart_without_regard_to_case_as_spark_writes_them_small() -> None:
    found = read_options(
        {**NAMESERVER, "topic": "b, a", "maxoffsetspertrigger": "7", "FailOnDataLoss": "False"}
    )
    assert (found.topics, found.max_offsets_per_trigger) == (("a", "b"), 7)
    assert not found.fail_on_data_loss


def test_other_names_of_an_option_mean_the_same() -> None:
    keys = {"access.key": "A", "secret.key": "S"}
    found = read_options({"namesrv": "h:1;g:2", "topic": "T", "groupId": "G", **keys})
    assert (found.nameserver, found.group, found.access_key) == ("h:1;g:2", "G", "A")


def test_without_any_option_it_is_said_of_which_there_are_none() -> None:
    """A table that was created with columns is read without options."""
    with pytest.raises(OptionError, match="A CREATE TABLE has none: Spark forgets"):
        read_options({})


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        (ReadOptions, "pipeline"),
        (WriteOptions, "pipeline"),
        (StoreOptions, "pipeline-store"),
    ],
)
def test_every_option_stands_in_its_page(kind: type[ReadOptions], page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    # Set by jobs, not by users.
    of_our_own = {"lossesNote", "againNote", "absentQueues", "runs", "blocks"}
    names = {camel(each.name) for each in fields(kind)} - of_our_own
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_two_names_of_an_option_cannot_say_two_things() -> None:
    read_options({**NAMESERVER, "namesrv": NAMESERVER["nameserver"], "topic": "T"})
    with pytest.raises(OptionError, match="namesrv: is another name of an option"):
        read_options({**NAMESERVER, "namesrv": "h:2", "topic": "T"})


def test_as_many_tasks_are_planned_as_there_are_cores_unless_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert read_options({**NAMESERVER, "topic": "T"}).parallelism == 7
    assert read_options({**NAMESERVER, "topic": "T", "parallelism": "3"}).parallelism == 3


def test_sizes_have_units() -> None:
    found = read_options(
        {**NAMESERVER, "topic": "T", "targetBytesPerTask": "1m", "pullBytes": "9k"}
    )
    assert (found.target_bytes_per_task, found.pull_bytes) == (1 << 20, 9 << 10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "nameserver: is required"),
        ({"nameserver": "here", "topic": "T"}, "'here' is not HOST:PORT"),
        ({"nameserver": "127.0.0.1:95412", "topic": "T"}, "'127.0.0.1:95412' is not HOST:PORT"),
        ({"nameserver": "127.0.0.1:0", "topic": "T"}, "'127.0.0.1:0' is not HOST:PORT"),
        ({"nameserver": "http://here:9876", "topic": "T"}, "'http://here:9876' is not HOST:PORT"),
        ({"nameserver": "here:9876:1", "topic": "T"}, "'here:9876:1' is not HOST:PORT"),
        ({"nameserver": "::1:9876", "topic": "T"}, "'::1:9876' is not HOST:PORT"),
        (NAMESERVER, "by `topic`"),
        ({**NAMESERVER, "topic": "T", "topicPattern": "T"}, "either by `topic`"),
        ({**NAMESERVER, "topic": " , "}, "names no topic"),
        (
            {**NAMESERVER, "topic": "['a', 'b']"},
            "topic: ['a', 'b'] is a list; separate topics with c",
        ),
        (
            {**NAMESERVER, "topic": "('a', 'b')"},
            "topic: ('a', 'b') is a list; separate topics with c",
        ),
        ({**NAMESERVER, "topicPattern": "("}, "topicPattern: not a regular expression"),
        (
            {**NAMESERVER, "topicPattern": "a{99999999999}"},
            "topicPattern: not a regular expression",
        ),
        ({**NAMESERVER, "topic": "T", "startingOffset": "x"}, "did you mean startingOffsets?"),
        ({"option.topic": "T", "topic": "T", "provider": "cometmq"}, "use CREATE TEMPORARY VIEW"),
        ({**NAMESERVER, "topic": "T", "failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe'"),
        ({**NAMESERVER, "topic": "T", "maxOffsetsPerTrigger": "1m"}, "maxOffsetsPerTrigger: '1m'"),
        ({**NAMESERVER, "topic": "T", "tags": "a", "filter": "b"}, "filter: give only one of"),
        ({**NAMESERVER, "topic": "T", "filter": "paid refused"}, "filter: 'paid refused' is neith"),
        ({**NAMESERVER, "topic": "T", "filter": "paid, refused"}, "filter: 'paid, refused' is nei"),
        ({**NAMESERVER, "topic": "T", "group": "my group"}, "group: 'my group' is not a name"),
        ({**NAMESERVER, "topic": "T", "timeoutMs": "0"}, "timeoutMs: must be 1 or more"),
        ({**NAMESERVER, "topic": "T", "timeoutMs": "9" * 15}, "timeoutMs: is more than 86400000"),
        ({**NAMESERVER, "topic": "T", "pullBytes": "99g"}, "pullBytes: is more than 2147483647"),
        ({**NAMESERVER, "topic": "T", "minPartitions": "-1"}, "minPartitions: '-1'"),
        ({**NAMESERVER, "topic": "T", "startingTimestamp": "soon"}, "startingTimestamp: 'soon'"),
        (
            {**NAMESERVER, "topic": "T", "startingtimestamp": " "},
            "startingTimestamp: '' is not a time",
        ),
        ({**NAMESERVER, "topic": "T", "endingTimestamp": ""}, "endingTimestamp: '' is not a time"),
        (
            {**NAMESERVER, "topic": "T", "startingOffsets": "soon"},
            "startingOffsets: 'soon' is not earliest, latest or",
        ),
        (
            {**NAMESERVER, "topic": "T", "endingOffsets": "[1]"},
            "endingOffsets: [1] must be an object",
        ),
        (
            {**NAMESERVER, "topic": "T", "endingOffsets": "group:"},
            "endingOffsets: '' is not a name of",
        ),
        (
            {**NAMESERVER, "topic": "T", "startingOffsets": '{"T": {"0": -3}}'},
            "startingOffsets: -3 of queue T/0 is not an offset",
        ),
        (
            {**NAMESERVER, "topic": "T", "startingTimestamp": "1", "startingOffsets": "latest"},
            "startingOffsets: give this or startingTimestamp",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        ({}, ("*", "TAG")),
        ({"filter": "paid"}, ("paid", "TAG")),
        ({"filter": "paid || refused"}, ("paid || refused", "TAG")),
        ({"filter": "paid || "}, ("paid ||", "TAG")),
        ({"filter": "a='x||y'"}, ("a='x||y'", "SQL92")),
        ({"filter": "amount > 100"}, ("amount > 100", "SQL92")),
        ({"filter": "country IS NOT NULL"}, ("country IS NOT NULL", "SQL92")),
        ({"filter": "vip AND paid"}, ("vip AND paid", "SQL92")),
        ({"tags": "a b"}, ("a b", "TAG")),
        ({"sqlFilter": "TRUE"}, ("TRUE", "SQL92")),
    ],
)
def test_a_filter_is_tags_or_sql92(given: dict[str, str], expression: tuple[str, str]) -> None:
    assert read_options({**NAMESERVER, "topic": "T", **given}).expression == expression


def test_times_are_milliseconds_or_iso_8601_in_utc() -> None:
    assert read_time_ms("t", "1700000000123") == 1700000000123
    assert read_time_ms("t", "2023-11-14T22:13:20") == 1700000000000
    for mistaken in ("20261121", " 1700000000"):
        with pytest.raises(OptionError, match=r"t: .* is a day or in seconds, and would"):
            read_time_ms("t", mistaken)
    assert read_time_ms("t", "2023-11-14T23:13:20+01:00") == 1700000000000
    assert read_time_ms("t", "2038-07-31T06:36:22.858") == 2164170982858


@pytest.mark.parametrize("name", ["dedupKey", "sinkId"])
def test_what_tells_rows_apart_is_not_empty(name: str) -> None:
    """Without it a row that is repeated may be there twice."""
    with pytest.raises(OptionError, match=f"^{name}: must not be empty; name "):
        write_options({**NAMESERVER, "topic": "T", name: " "})


def test_a_delivery_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="not auto, idempotent or at-least-once"):
        write_options({**NAMESERVER, "delivery": "exactly-once"})


SIZES = ("targetBytesPerTask", "pullBytes", "batchBytes", "splitBytes")
NO_LIMIT = ("maxOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition", "maxInFlight")
MAY_BE_0 = (*NO_LIMIT, "retries", "retryIntervalMs", "firstOffset", "splitBytes")
READERS: dict[type, tuple[Callable[[Mapping[str, str]], object], dict[str, str]]] = {
    ReadOptions: (read_options, {**NAMESERVER, "topic": "T"}),
    WriteOptions: (write_options, NAMESERVER),
    StoreOptions: (store_options, {"path": "s"}),
}
NUMBERS = [
    (kind, camel(each.name), str(each.type))
    for kind in READERS
    for each in fields(kind)
    if each.type in ("int", "float")
]


def refusals(kind: type, name: str) -> dict[str, str]:
    """Return the error for each value that is refused, by the value."""
    read, others = READERS[kind]
    said: dict[str, str] = {}
    for text in ("0", "-1", "", "many", "1.5.2", "nan", "1e3", "1m1", "9" * 20):
        try:
            read({**others, name: text})
        except OptionError as error:
            said[text] = str(error)
    return said


@pytest.mark.parametrize(("kind", "name", "number"), NUMBERS)
def test_a_number_that_cannot_be_is_refused_by_its_name(kind: type, name: str, number: str) -> None:
    said = refusals(kind, name)
    assert all(each.startswith(f"{name}: ") for each in said.values())
    assert ("0" in said) == (name not in MAY_BE_0)
    assert said.keys() - {"0"} == {"-1", "", "many", "1.5.2", "nan", "1e3", "1m1", "9" * 20}
    if number == "int":
        unit = "not a number of bytes" if name in SIZES else "not a whole number of 0 or more"
        assert unit in said["-1"]
        assert unit in said["many"]


def test_secrets_are_not_shown() -> None:
    found = write_options({**NAMESERVER, "accessKey": "me", "secretKey": "hush"})
    assert "hush" not in repr(found) + repr(found.settings())


def test_what_spark_passes_on_of_its_own_is_passed_over() -> None:
    assert write_options({**NAMESERVER, "checkpointLocation": "c", "path": "p"}).topic == ""


def test_a_number_that_is_too_large_is_not_told_as_none() -> None:
    """Such a number stands for no limit elsewhere; here 0 does."""
    options = {**NAMESERVER, "topic": "T", "maxOffsetsPerTrigger": str((1 << 63) - 1)}
    with pytest.raises(OptionError, match=r"maxOffsetsPerTrigger: '9\d+' has more than 15 digits"):
        read_options(options)


@pytest.mark.spark
def test_a_session_takes_no_setting_that_spark_would_pass_over() -> None:
    pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
    from cometmq.pipeline import session

    with pytest.raises(OptionError, match=r"^session: driver_memory: is not a setting of Spark"):
        session(driver_memory="4g")
    with pytest.raises(OptionError, match=r"^session: appName: .*, nor master or app_name$"):
        session(appName="orders")
    with pytest.raises(OptionError, match=r"^session: driver\.memory: .* mean spark\.driver"):
        session(**{"driver.memory": "4g"})


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_that_are_empty_are_no_default(name: str) -> None:
    with pytest.raises(
        OptionError, match=f"^{name}: must not be empty; write earliest, latest or JSON"
    ):
        read_options({**NAMESERVER, "topic": "T", name: " "})
