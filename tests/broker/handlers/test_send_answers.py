"""The answers to sends whose message is stored, for every form of the request."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired

from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.connection import Connection
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.header_json import JSON
from cometmq.proto.offer import OFFER, OFFER_FIELD

TOPIC = "BenchmarkTest"


def send(unique_id: str, *, code: int = 310, codec: int = 0) -> Command:
    properties = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02"
    request = send_request(TOPIC, b"x", properties=properties)
    return replace(request, code=code, codec=HEADER_CODECS[codec])


def answered(wired: Wired, request: Command) -> SendMessageResponse:
    peer = wired.connect()
    # The codec makes a connection's first answer, which may have to accept an offer.
    wired.ask(peer, send("first", codec=request.codec.serialize_type if request.codec else 0))
    return wired.ask(peer, request).expect().read(SendMessageResponse)


@pytest.mark.parametrize("unique_id", ["7F0000014D2C18B4AAC2000000000001", 'odd "id" of ours', "ä"])
def test_every_codec_is_told_the_same(tmp_path: Path, unique_id: str) -> None:
    wired = Wired(config_of(tmp_path))
    told = [answered(wired, send(unique_id, codec=codec)) for codec in HEADER_CODECS]
    assert [each.queue_offset for each in told] == [1, 3, 5]
    offsets = [int(each.msg_id, 16) for each in told]
    assert offsets[1] - offsets[0] == offsets[2] - offsets[1] > 0
    for each in told:
        assert each.transaction_id == unique_id
        assert (each.queue_id, each.region_id, each.trace_on) == (0, "DefaultRegion", True)
    wired.close()


@pytest.mark.parametrize("codec", [0, 2])
def test_an_answer_of_a_form_is_byte_for_byte_the_usual_one(tmp_path: Path, codec: int) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    request = send("ID1", codec=codec)
    for unique_id in ("ID0", "ID1"):  # The second finds the part after its id known.
        wired.give(peer, wired.frame(peer, send(unique_id, codec=codec)))
        written = bytes(peer.written)
        (answer,) = wired.answers(peer)
    told = answer.read(SendMessageResponse)
    usual = replace(request, opaque=answer.opaque).answer(0, told)
    assert written == b"".join(Connection().send(usual))
    wired.close()


def test_a_send_that_makes_the_offer_of_messagepack_is_answered_with_its_acceptance(
    tmp_path: Path,
) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    answer = wired.ask(peer, replace(send("ID1"), extras=OFFER))
    assert answer.ext_fields[OFFER_FIELD] == OFFER[OFFER_FIELD]
    assert OFFER_FIELD not in wired.ask(peer, send("ID2")).ext_fields
    wired.close()


def test_a_form_has_the_names_in_the_order_of_any_other_answer(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    general, of_form = (wired.ask(peer, send(unique_id)) for unique_id in ("ID1", "ID2"))
    assert general.codec is of_form.codec is JSON
    assert list(of_form.ext_fields) == list(general.ext_fields)
    wired.close()


def test_who_wants_no_answer_gets_none(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    wired.ask(peer, send("ID1"))
    wired.give(peer, wired.frame(peer, replace(send("ID2"), flag=2)))
    assert wired.answers(peer) == []
    assert wired.ask(peer, send("ID3")).expect().read(SendMessageResponse).queue_offset == 2
    wired.close()
