"""Any bytes are properties. Finding, setting and removing one agree with decoding all."""

from __future__ import annotations

from cometmq.proto.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
    set_property,
)


def check(data: bytes) -> None:
    properties = decode_properties(data)
    for name in (*properties, "TAGS"):
        raw = name.encode()
        found = find_property(data, raw)
        if "�" in name:
            continue  # The name in the bytes may differ, if it is not UTF-8.
        assert (None if found is None else found.decode("utf-8", "replace")) == properties.get(name)
        assert find_property(remove_property(data, raw), raw) is None
        assert find_property(set_property(data, raw, b"v"), raw) == b"v"
    if not any("\x01" in value for value in properties.values()):
        small = {name: value for name, value in properties.items() if len(value) < 1000}
        assert decode_properties(encode_properties(small)) == small
