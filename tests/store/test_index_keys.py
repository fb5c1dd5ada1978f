from __future__ import annotations

from hypothesis import given, strategies as st

from cometmq.proto.properties import decode_properties
from cometmq.store.index.index_keys import index_keys, query_key

names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"MY_UNIQ_KEY", b"XKEYS", b""])
values = st.sampled_from(
    [b"", b"a", b"a b", b" a  b ", b"UNIQ_KEY\x01x", "标 签".encode(), b"\xff"]
)
raw_properties = (
    st.lists(st.tuples(names, values)).map(
        lambda pairs: b"\x02".join(b"%b\x01%b" % pair for pair in pairs)
    )
    | st.binary()
)


def plain_keys(topic: bytes, raw: bytes) -> list[bytes]:
    properties = decode_properties(raw)
    words = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
    words += [f"T#{properties['TAGS']}"] if "TAGS" in properties else []
    return [topic + b"#" + word.encode() for word in words if word]


def replaced(keys: list[bytes]) -> list[bytes]:
    return [key.decode("utf-8", "replace").encode() for key in keys]


@given(raw_properties)
def test_keys_are_those_that_decoding_all_properties_gives(raw: bytes) -> None:
    assert replaced(index_keys(b"t", raw)) == plain_keys(b"t", raw)


def test_the_order_is_id_words_tags() -> None:
    raw = b"TAGS\x01a || b\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01id\x02"
    assert index_keys(b"t", raw) == [b"t#id", b"t#k1", b"t#k2", b"t#T#a || b"]


def test_a_query_asks_for_the_key_as_it_was_indexed() -> None:
    assert query_key("t", "k1") == "t#k1"
    assert query_key("t", "a || b", "T") == "t#T#a || b"
