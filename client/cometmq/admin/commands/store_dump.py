"""`cometmq store dump`."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.admin.commands.store import look_at, store_command
from cometmq.admin.parameters import TimeParameter
from cometmq.admin.render import one_line, show_line, time_text, warn
from cometmq.client._core.checking import time_ms
from cometmq.proto.compression import decompress
from cometmq.proto.errors import MessageError
from cometmq.store.disk.names import some_of
from cometmq.store.looking.selection import Selection, Wanted
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.starting.folder import queue_folders

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage

NAMED_MAX: Final = 20
"""How many topics, or queues of a topic, are named if no record matches."""

BODY_SIZE_MAX: Final = 64 << 20
"""The largest size to which a body may decompress."""


class RangeParameter(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer ones.
    """A physical offset, or two with `..` between them: the first, and the one after the last."""

    name = "offset"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        """Return both; the end is None for a single offset."""
        first, dots, end = str(value).partition("..")
        is_range = first.isdecimal() and (end.isdecimal() or not dots)
        if not is_range or (dots and int(first) >= int(end)):
            self.fail(f"{value!r} is neither an offset nor a range like 65536..131072", param, ctx)
        return int(first), int(end) if dots else None


@click.command(short_help="Print records in the order of the log.")
@store_command
@click.option("--topic", help="Only records of this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only of this queue id.")
@click.option("--from", "from_offset", type=click.IntRange(min=0), help="First queue offset.")
@click.option("--to", "to_offset", type=click.IntRange(min=0), help="Queue offset to stop before.")
@click.option(
    "--physical",
    type=RangeParameter(),
    help="The record at a physical offset, or those in a range: FROM..TO.",
)
@click.option(
    "--since",
    type=TimeParameter(),
    help="Stored at or after this time: ISO 8601 (UTC without a zone), or ms.",
)
@click.option(
    "--until",
    type=TimeParameter(),
    help="Stored before this time. If the clock was wrong within one file of the log, --since and"
    " --until may leave out what was stored at the wrong time.",
)
@click.option("--key", help="Only records with this unique id, or with this key.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--body", type=click.Choice(["text", "hex"]), help="Show bodies, decompressed.")
@click.option(
    "--cut",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Show at most this many bytes of a body; 0 for all of it.",
)
@click.pass_context
def dump(
    context: click.Context,
    root: str,
    as_json: bool,
    index_slots: int | None,
    index_items: int | None,
    topic: str | None,
    queue_id: int | None,
    from_offset: int | None,
    to_offset: int | None,
    physical: tuple[int, int | None] | None,
    since: datetime | None,
    until: datetime | None,
    key: str | None,
    limit: int | None,
    body: str | None,
    cut: int,
) -> None:
    """Print records in the order of the log; with --json one JSON document per line.

    It reads the log itself, so it works even if queues or the index are damaged. At damage in the
    log it continues after it, and the exit status is 1. Nothing is changed.

    Options narrow down what is printed. --physical, --since, and --from with --topic and --queue
    also skip reading what comes before. (So if offsets were given out twice, --from leaves out the
    earlier messages that had them.) Times are UTC unless they name a zone.

    \b
    Examples:
      cometmq store dump ./cometmq-data --topic orders --limit 10
      cometmq store dump ./cometmq-data --topic orders --queue 0 --from 100 --to 110 --body text
      cometmq store dump ./cometmq-data --since 2026-11-21T10:00 --until 2026-11-21T10:05
      cometmq store dump ./cometmq-data --key order-17 --json | jq .properties
      cometmq store dump ./cometmq-data --physical 65536..131072 --body hex
    """
    at, end = physical or (None, None)
    wanted = Wanted(
        topic=topic,
        queue_id=queue_id,
        from_offset=from_offset,
        to_offset=to_offset,
        physical_offset=at,
        physical_end=end,
        since_ms=None if since is None else time_ms(since),
        until_ms=None if until is None else time_ms(until),
        key=key,
    )
    _refuse_empty("--from", wanted.from_offset, "--to", wanted.to_offset)
    _refuse_empty("--since", wanted.since_ms, "--until", wanted.until_ms)
    inspected = look_at(context, root, index_slots, index_items)
    selection = Selection(inspected, wanted)
    count = 0
    for message in selection:
        if as_json:
            show_line(_document(message, body, cut))
        else:
            if not count:
                click.echo(_HEADINGS)
            click.echo(_row(message, body, cut))
        count += 1
        if count == limit:
            break
    is_damaged = _warn_of_damage(selection.log.damages, at or 0, end)
    if physical is None and not count:
        warn(f"no record matches; {_there_text(inspected, topic)}")
    if physical is not None and not count:
        place = f"begins at {at}" if end is None else f"reaches into {at}..{end}"
        raise click.ClickException(f"no matching record {place}")
    if is_damaged:
        raise click.exceptions.Exit(1)


def _refuse_empty(from_name: str, first: int | None, to_name: str, end: int | None) -> None:
    """Refuse a range that cannot contain any record."""
    if first is not None and end is not None and first >= end:
        raise click.UsageError(f"{from_name} is not before {to_name}, so no record is between them")


def _warn_of_damage(damages: Sequence[Damage], at: int, end: int | None) -> bool:
    """Print the damages of the log, or those in a range; return whether there are any.

    What is before the range was only read to find its first record.
    """
    named = [each for each in damages if end is None or (each.end > at and each.start < end)]
    for damage in named:
        warn(
            f"warning: no sound record in {damage.start} to {damage.end}: {damage.problem};"
            " see `cometmq store verify`"
        )
    return bool(named)


def _there_text(inspected: Inspected, topic: str | None) -> str:
    """List the queues of a topic or, if it has none, the topics that have queues."""
    folders = (f"{inspected.root}/{folder}" for folder in (SIMPLE_FOLDER, BATCH_FOLDER))
    found = {(t, q) for each in folders for t, q, _ in queue_folders(inspected.filesystem, each)}
    if queues := sorted(number for name, number in found if name == topic):
        return f"queues of {topic} here: {some_of(list(map(str, queues)), NAMED_MAX)}"
    topics = sorted({name for name, _ in found})
    return f"topics here: {some_of(topics, NAMED_MAX) or 'none'}"


_ROW: Final = "{:>14}  {:>8}  {:<24}  {:>5}  {:>10}  {:<24}  {:<12}  {}"
_HEADINGS: Final = _ROW.format(
    "physical", "size", "stored", "queue", "offset", "topic", "tags", "keys"
)


def _row(message: StoredMessage, body: str | None, cut: int) -> str:
    keys = [key for key in (message.unique_id, *message.keys) if key]
    row = _ROW.format(
        message.physical_offset,
        message.size,
        time_text(message.store_timestamp),
        message.queue_id,
        message.queue_offset,
        one_line(message.topic_raw.decode("utf-8", "replace")),
        one_line(message.tags or ""),
        one_line(" ".join(keys)),
    ).rstrip()
    if body is None:
        return row
    text, encoding, size = _body(message, body, cut)
    shown = text if encoding == "hex" else one_line(text)
    rest = "" if cut == 0 or size <= cut else f" ... ({size} bytes)"
    return f"{row}\n{'':>14}  {encoding}: {shown}{rest}"


def _body(message: StoredMessage, form: str, cut: int) -> tuple[str, str, int]:
    """Return the body as text or hex, which of the two it is, and its whole size."""
    try:
        plain = decompress(message.body, message.sys_flag, BODY_SIZE_MAX)
    except MessageError:
        plain, form = message.body, "hex"  # It cannot be decompressed: show it as it is.
    part = plain[:cut] if cut else plain
    if form == "text":
        try:
            # Only a character that the cut splits is left out; the rest must be text.
            decoder = getincrementaldecoder("utf-8")()
            return decoder.decode(part, len(part) == len(plain)), "text", len(plain)
        except UnicodeDecodeError:
            pass
    return part.hex(), "hex", len(plain)


def _document(message: StoredMessage, body: str | None, cut: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "physical_offset": message.physical_offset,
        "size": message.size,
        "topic": message.topic_raw.decode("utf-8", "replace"),
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "unique_id": message.unique_id,
        "tags": message.tags,
        "keys": message.keys,
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
        "born_host": str(message.born_address),
        "store_host": str(message.store_address),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_size": len(message.body),
        "properties": message.properties,
    }
    if body is not None:
        document["body"], document["body_form"], document["body_plain_size"] = _body(
            message, body, cut
        )
    return document
