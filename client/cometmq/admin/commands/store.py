"""`cometmq store`: inspecting and repairing a store's files without a broker."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from cometmq.admin.options import options
from cometmq.admin.render import (
    count_text,
    need_output,
    one_line,
    show_facts,
    show_json,
    show_table,
    size_text,
    time_text,
)
from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import StoreError, disk_error_text
from cometmq.store.index.index_format import COUNT_MAX
from cometmq.store.looking.inspection import looking_at
from cometmq.store.looking.summary import summarize
from cometmq.store.looking.unlisted import unlisted_text
from cometmq.store.upkeep.checkpoint import Longs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from cometmq.store.disk.filesystem import FileSystem, Space
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.summary import Summary

Command = TypeVar("Command", bound="Callable[..., Any]")


@click.group()
def store() -> None:
    """Inspect and repair a store's files, without a broker.

    All of it works on stores of CometMQ and of Apache RocketMQ. `stat`, `verify` and `dump` only
    read, and may run while a broker has the store open; `rebuild` and `repair` need it for
    themselves. DIR is the folder that commitlog/ is in.

    \b
    Something is wrong with a store. What now?
      cometmq store verify DIR              what is wrong, and where
      cometmq store rebuild DIR             if only queues or the index are concerned
      cometmq store repair --dry-run DIR    if records of the log are
    """


@contextmanager
def errors_told() -> Generator[None, None, None]:
    """Turn errors of the store or the disk into one clear line and exit status 1."""
    try:
        yield
    except StoreError as error:
        raise click.ClickException(one_line(str(error))) from error
    except BrokenPipeError:
        raise  # The reader has seen enough (`| head`): click ends silently.
    except OSError as error:
        # Errors of the store have a file name; an error of the output has none.
        if error.filename is None:
            problem = error.strerror or error
            raise click.ClickException(
                f"the output cannot be written: {problem}; check where it goes, it is not the store"
            ) from error
        raise click.ClickException(one_line(disk_error_text(error))) from error


def store_command(command: Command) -> Command:
    """Give a command the arguments that all store commands have."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        need_output()
        with errors_told():
            return command(*args, **kwargs)

    return cast("Command", _ARGUMENTS(run))


_ARGUMENTS: Final = options(
    click.argument("root", metavar="DIR"),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
    click.option(
        "--index-slots",
        type=click.IntRange(min=1, max=COUNT_MAX),
        help="Slots per index file; needed if the files do not tell.",
    ),
    click.option(
        "--index-items",
        type=click.IntRange(min=2, max=COUNT_MAX),
        help="Items per index file; needed if the files do not tell.",
    ),
)


def filesystem_of(context: click.Context) -> FileSystem:
    """Return the file system to work on: the real one, unless the caller passed another."""
    return context.obj or RealFileSystem()


def config_of(index_slots: int | None, index_items: int | None) -> StoreConfig:
    """Return the settings that cannot be read from the files."""
    config = StoreConfig()
    return replace(
        config,
        index_slots=index_slots or config.index_slots,
        index_items=index_items or config.index_items,
    )


def clean_root(root: str) -> str:
    """Return a folder's name without trailing slashes."""
    if not root:
        raise click.UsageError("DIR is empty: name the folder of a store")
    return root.rstrip("/") or "/"


def look_at(
    context: click.Context, root: str, index_slots: int | None, index_items: int | None
) -> Inspected:
    """Look at a store that is only read; the command's end closes the files of its log."""
    config = config_of(index_slots, index_items)
    seen = looking_at(filesystem_of(context), clean_root(root), config)
    return context.with_resource(seen)


@click.command()
@store_command
@click.option("--queues", is_flag=True, help="List every queue, not only topics.")
@click.pass_context
def stat(
    context: click.Context,
    root: str,
    as_json: bool,
    index_slots: int | None,
    index_items: int | None,
    queues: bool,
) -> None:
    """Show what a store holds, and its state.

    Segments, first and last offsets and times, topics and queues, index files, the checkpoint, who
    has it open, and the disk. Changes nothing; works while a broker runs. Exit status 1 where a
    line `damage` says what a first look found wrong.

    \b
    Examples:
      cometmq store stat ./cometmq-data
      cometmq store stat --queues ~/store
      cometmq store stat --json ./cometmq-data | jq .messages
    """
    look = partial(_sum_up, context, root, index_slots, index_items)
    try:
        inspected, summary, damages = look()
    except FileNotFoundError:  # A broker removed an expired file between two looks.
        inspected, summary, damages = look()
    if as_json:
        show_json(_document(inspected, summary, damages))
    else:
        show_facts(_facts(inspected, summary, damages))
        if summary.queues:
            click.echo()
            _show_queues(summary, each=queues)
    if damages:
        context.exit(1)


def _sum_up(
    context: click.Context, root: str, index_slots: int | None, index_items: int | None
) -> tuple[Inspected, Summary, list[str]]:
    inspected = look_at(context, root, index_slots, index_items)
    summary = summarize(inspected)
    return inspected, summary, list(_damages(inspected, summary))


def _show_queues(summary: Summary, *, each: bool) -> None:
    if each:
        show_table(
            ("topic", "#queue", "#first", "#next", "#messages", "kind"),
            (
                (
                    queue.topic,
                    queue.queue_id,
                    queue.min_offset,
                    queue.max_offset,
                    queue.max_offset - queue.min_offset,
                    "batch" if queue.is_batch else "",
                )
                for queue in summary.queues
            ),
        )
    else:
        show_table(("topic", "#queues", "#messages"), _topics(summary))


def state_text(inspected: Inspected) -> str:
    """Describe the state of a store."""
    if inspected.opened_by is not None:
        return f"open in process {inspected.opened_by}"
    if inspected.is_clean:
        return "shut down cleanly"
    return "not shut down cleanly; the next start recovers it"


def _facts(inspected: Inspected, summary: Summary, damages: list[str]) -> Iterator[tuple[str, str]]:
    size = summary.end_offset - summary.first_offset
    yield "store", inspected.root
    yield "state", state_text(inspected)
    yield (
        "log",
        f"{count_text(summary.segments, 'segment')} of {size_text(summary.segment_size)},"
        f" offsets {summary.first_offset} to {summary.end_offset} ({size_text(size)})",
    )
    yield "stored", f"{time_text(summary.first_time)} to {time_text(summary.last_time)}"
    topics = len({queue.topic for queue in summary.queues})
    yield (
        "queues",
        f"{count_text(summary.messages, 'message')} in"
        f" {count_text(len(summary.queues), 'queue')} of {count_text(topics, 'topic')}",
    )
    if summary.behind_queues:
        messages = count_text(summary.behind_queues, "message")
        them = "it" if summary.behind_queues == 1 else "them"
        then = "" if inspected.opened_by is not None else f": the next start puts {them} there"
        yield "note", f"{messages} more at the end of the log, in no file of a queue yet{then}"
    for problem in damages:
        yield "damage", problem
    for note in inspected.damaged_tables.notes():
        yield "note", note
    if summary.unlisted_topics:
        yield "note", unlisted_text(summary.unlisted_topics)
    yield (
        "index",
        f"{count_text(len(summary.index), 'file')} of {summary.index_slots} slots and"
        f" {summary.index_items} items, {sum(file.items for file in summary.index)} used",
    )
    longs, claims = inspected.checkpoint.longs, inspected.checkpoint.claims
    if claims is not None:
        yield (
            "checkpoint",
            f"synced to {claims.synced_offset}, recovery from {claims.recover_from}",
        )
    elif inspected.checkpoint.is_damaged:
        yield "checkpoint", "damaged: the next start reads the log from its beginning"
    elif longs == Longs():
        yield "checkpoint", "none: the next start reads the log from its beginning"
    else:
        yield (
            "checkpoint",
            f"Apache's: queues to {longs.queues_offset}, log {time_text(longs.log_timestamp)}",
        )
    yield (
        "files",
        ", ".join(_size_text(name, n, summary.rooms[name]) for name, n in summary.sizes.items()),
    )
    yield "disk", _space_text(summary.disk)
    if summary.log_disk is not None:
        yield "log's disk", _space_text(summary.log_disk)


def _damages(inspected: Inspected, summary: Summary) -> Iterator[str]:
    for path, problem in inspected.in_rocksdb.items():
        yield f"{path}: {problem}; a start refuses the store"
    if summary.missing_end is not None:
        yield (
            f"files of the log are missing: it is there from {summary.first_offset} to"
            f" {inspected.segments.data_limit}, but was on the disk up to {summary.missing_end};"
            " a start refuses the store: run `cometmq store verify`"
        )
    if summary.safe_offset is not None:
        yield (
            f"no sound record begins at {summary.end_offset}, but the log was safe on the disk"
            f" up to {summary.safe_offset}: run `cometmq store verify`"
        )
    if short := summary.short_queues:
        first = short[0]
        more = f" and {len(short) - 1} more" if len(short) > 1 else ""
        yield (
            f"the sound entries of queue {first.queue_id} of {first.topic} end at"
            f" {first.max_offset}, but it had messages up to {first.known_offset}{more}: run"
            " `cometmq store verify`"
        )
    for path, length in list(summary.odd_index_files.items())[:1]:
        odd = len(summary.odd_index_files)
        yield (
            f"{path}{f' and {odd - 1} more' if odd > 1 else ''}: {length} bytes, which is not"
            f" the size of an index file of {summary.index_slots} slots and"
            f" {summary.index_items} items; a start refuses the store: run `cometmq store"
            " verify`"
        )
    for problem in inspected.damaged_tables.refused.values():
        yield f"{problem}; a start refuses the store"


def _space_text(disk: Space) -> str:
    used = 100 * (disk.total - disk.free) // max(1, disk.total)
    return f"{size_text(disk.free)} free of {size_text(disk.total)} ({used} % used)"


def _size_text(name: str, size: int, room: int) -> str:
    sparse = f" ({size_text(room)} on disk)" if room < size else ""
    return f"{name} {size_text(size)}{sparse}"


def _topics(summary: Summary) -> Iterator[tuple[str, int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for queue in summary.queues:
        number, messages = counts.get(queue.topic, (0, 0))
        counts[queue.topic] = number + 1, messages + queue.max_offset - queue.min_offset
    for topic in sorted(counts):
        yield (topic, *counts[topic])


def _document(inspected: Inspected, summary: Summary, damages: list[str]) -> dict[str, Any]:
    claims = inspected.checkpoint.claims
    document = asdict(summary)
    for name in ("disk", "log_disk"):
        space = document[name]
        document[name] = None if space is None else {"total": space.total, "free": space.free}
    return {
        "store": inspected.root,
        "clean": inspected.is_clean,
        "opened_by": inspected.opened_by,
        "messages": summary.messages,
        "damages": damages,
        "backed_tables": inspected.damaged_tables.from_backup,
        "empty_tables": inspected.damaged_tables.empty,
        **document,
        "checkpoint": {
            "apache": asdict(inspected.checkpoint.longs),
            "claims": None if claims is None else asdict(claims),
            "damaged": inspected.checkpoint.is_damaged,
        },
    }
