"""What jobs in threads of one session share, and do not take from each other."""

from __future__ import annotations

from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.jobs.archive_files import read_files
from cometmq.pipeline.jobs.tables import named

if TYPE_CHECKING:
    from collections.abc import Callable

_INFERRED = "spark.sql.sources.partitionColumnTypeInference.enabled"
_A_MOMENT = 0.05


def beside(do: Callable[[], object]) -> tuple[Thread, Event]:
    """Do something in another thread, and return what tells that it is done."""
    done = Event()

    def doing() -> None:
        do()
        done.set()

    thread = Thread(target=doing)
    thread.start()
    return thread, done


@pytest.mark.spark
def test_two_that_read_archives_leave_the_session_as_it_was() -> None:
    settings = {_INFERRED: "true"}
    seen: list[str] = []
    threads: list[Thread] = []
    first_ended = Event()

    def same(_: str) -> Any:
        return frame

    frame = SimpleNamespace(columns=list[str](), drop=same)

    def parquet(path: str) -> Any:
        if path == "first":
            thread, done = beside(lambda: read_files(session, "", ["second"]))
            threads.append(thread)
            done.wait(_A_MOMENT)
        else:
            first_ended.wait()
        seen.append(settings[_INFERRED])
        return frame

    def options(**_: str) -> Any:
        return SimpleNamespace(parquet=parquet)

    read = SimpleNamespace(options=options)
    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__)
    session: Any = SimpleNamespace(conf=conf, read=read)
    read_files(session, "", ["first"])
    first_ended.set()
    threads[0].join()
    assert (seen, settings) == (["false", "false"], {_INFERRED: "true"})


def test_two_tables_of_one_name_have_it_one_after_the_other() -> None:
    views: dict[str, str] = {}
    catalog = SimpleNamespace(tableExists=views.__contains__, dropTempView=views.pop)
    session = SimpleNamespace(catalog=catalog)

    def table(text: str) -> Any:
        def name_it(name: str) -> None:
            views[name] = text

        return SimpleNamespace(sparkSession=session, createOrReplaceTempView=name_it)

    def second() -> None:
        with named(table("second"), "records"), named(table("other"), "entries"):
            assert views == {"records": "second", "entries": "other"}

    with named(table("first"), "records"):
        thread, done = beside(second)
        assert not done.wait(_A_MOMENT)
        assert views == {"records": "first"}
    thread.join()
    assert done.is_set()
    assert views == {}
