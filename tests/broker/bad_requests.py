"""Makes requests that no client should send, for any request code, from its header and body."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tests.proto.bodies.samples import sample

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import REQUEST_BODIES
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.commands.table import BROKER_COMMANDS
from cometmq.proto.frame import frame_head
from cometmq.proto.header import fields_of
from cometmq.proto.header_codecs import HEADER_CODECS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

TOPICS = ("T", "B")
"""Topics that a broker needs for some of these requests to get far. `B` has batch queues."""
GROUP = "g"

SOUND: dict[str, Any] = {
    "topic": "T",
    "consumer_group": GROUP,
    "group": GROUP,
    "producer_group": "p",
    "default_topic": "TBW102",
    "expression_type": "TAG",
    "subscription": "*",
    "key": "k",
    "max_num": 8,
    "end_timestamp": 1 << 60,
    "max_msg_nums": 8,
    "default_topic_queue_nums": 4,
    "sys_flag": 6,
    "suspend_timeout_millis": 10,
    "batch": "false",
    "properties": "KEYS\x01k\x02",
}
"""Values of fields by name. Other fields get the default of their type, or a word."""
DEFAULTS: dict[type, Any] = {int: 0, float: 0.5, bool: "true"}

HOSTILE: tuple[Any, ...] = (
    None, "", " ", "null", "T", "B", GROUP, "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_x",
    "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "../../etc/passwd", "a/b", "..", "\x00",
    "\x01\x02", "a\x01b\x02", "\n", "%", "%s%n", "é中😀", "\ud800", "x" * 128, "x" * 256, "{",
    "x" * 5000, "[]", "a" * 40_000, "TagA || TagB", "||", "a > ", "a > 1", "NOT " * 300 + "a",
    "SQL92", "-1", "0", "1", "2", "7", "true", "false", "yes", "1.5", "1e3", "0x1", "٣", " 1", "+1",
    "1_0",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "9" * 40, 0, 1, -1, 1.5, True, False, 1 << 31,
    1 << 63, -(1 << 63), 10**30, [], {}, ["T"], {"topic": "T"}, "DELAY\x011\x02",
    "PGROUP\x01p\x02TRAN_MSG\x01true\x02", "WAIT\x01false\x02", "UNIQ_KEY\x01\x02",
    "KEYS\x01a b c\x02", "TIMER_DELIVER_MS\x01x\x02", "0" * 32, "127.0.0.1:1", "LOWER", "key1 key2",
    "\u2028", "\x7f", "a:b:c:d", "{}", '{"a":1}', "*", "#",
)  # fmt: skip

BATCHES = (
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_BATCH_ONCE,
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
)
_ID = b"UNIQ_KEY\x01" + b"0" * 32
BATCH = encode_batch("T", [BatchItem(b"one", b"a\x01b\x02" + _ID, 3), BatchItem(b"two", _ID)])


@dataclass(frozen=True)
class BadRequest:
    """One request as it goes over the wire."""

    frame: bytes
    opaque: int
    is_oneway: bool


def header_fields(code: int) -> dict[str, str]:
    """Return header fields of a code that pass every check."""
    header = BROKER_COMMANDS[RequestCode(code)].request
    if header is None:
        return {}
    found: dict[str, str] = {}
    for field in fields_of(header):
        found[field.wire_name] = str(SOUND.get(field.name, DEFAULTS.get(field.kind, "x")))
    return found


def frame_of(kind: int, header: bytes, body: bytes) -> bytes:
    """Put a frame together."""
    return frame_head(kind, len(header), len(body)) + header + body


def bodies(code: int) -> SearchStrategy[bytes]:
    """No body, noise, JSON, and the code's own body, sound or damaged."""
    kinds = [
        st.just(b"x"),
        st.binary(max_size=60),
        json_trees().map(lambda tree: json.dumps(tree).encode()),
        st.just(b"[" * 20_000),
        st.just(b'{"a":' * 5_000),
    ]
    body = REQUEST_BODIES.get(code)
    if code in BATCHES:
        kinds += [st.just(BATCH), torn(BATCH)]
    if body is not None:
        sound = sample(body).encode()
        kinds += [st.just(sound), torn(sound)]
        kinds.append(
            json_trees(tuple(json_names(sound))).map(lambda tree: json.dumps(tree).encode())
        )
    return st.one_of(kinds)


def json_names(text: bytes) -> set[str]:
    """Return the names of the members of a JSON object, nested ones included."""
    found: set[str] = set()

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.update(name for name, _ in pairs)

    try:
        json.loads(text, object_pairs_hook=note)
    except ValueError:  # Apache's dialect of JSON.
        return {"topic", "groupName"}
    return found


def json_trees(names: tuple[str, ...] = ("topic", "a")) -> SearchStrategy[Any]:
    """Any JSON whose objects have members of these names."""
    hostile = [value for value in HOSTILE if value != "\ud800"]
    return st.recursive(
        st.sampled_from(hostile),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(names), inner, max_size=4)
        ),
        max_leaves=8,
    )


@st.composite
def torn(draw: st.DrawFn, body: bytes) -> bytes:
    """A body with one part cut out and a few other bytes put in."""
    start, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
    return body[:start] + draw(st.binary(max_size=4)) + body[end:]


@st.composite
def bad_requests(draw: st.DrawFn, code: int) -> BadRequest:
    """A request of this code with missing or wrong fields, in any codec, with any body."""
    fields: dict[str, Any] = dict(header_fields(code))
    for name in draw(st.lists(st.sampled_from(sorted(fields) or ["x"]), max_size=4)):
        fields[name] = draw(st.sampled_from(HOSTILE))
    if fields and draw(st.integers(0, 3)) == 0:
        del fields[draw(st.sampled_from(sorted(fields)))]
    for name in draw(st.lists(st.sampled_from(["x", "", "é", "topic", "bname", "_"]), max_size=2)):
        fields[name] = draw(st.sampled_from(HOSTILE))
    flag = draw(st.sampled_from([0, 0, 0, 0, ONEWAY_FLAG]))
    opaque = draw(st.integers(-(2**31), 2**31 - 1))
    body = draw(bodies(code))
    if draw(st.booleans()):
        header = {"code": code, "flag": flag, "opaque": opaque, "version": 513, "language": "JAVA"}
        raw = json.dumps(header | {"extFields": fields}, separators=(",", ":")).encode()
        return BadRequest(frame_of(0, raw, body), opaque, flag != 0)
    texts = {
        name: value for name, value in fields.items() if isinstance(value, str) and is_text(value)
    }
    kind = draw(st.sampled_from(sorted(HEADER_CODECS) if code < 1 << 15 else [0, 2]))
    command = Command(code, texts, flag, opaque, version=513)
    return BadRequest(frame_of(kind, HEADER_CODECS[kind].encode(command), body), opaque, flag != 0)


def is_text(value: str) -> bool:
    """Tell whether a value can be encoded in UTF-8 and in every codec."""
    return "\ud800" not in value and len(value) < 30_000
