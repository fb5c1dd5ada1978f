"""Every captured body decodes into its class without loss, and is written as Apache wrote it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.proto.bodies.samples import any_body
from tests.proto.bodies.wire_bodies import BODIES, WireBody

from cometmq.proto import bodies
from cometmq.proto.bodies import (
    REQUEST_BODIES,
    RESPONSE_BODIES,
    SubscriptionData,
    TopicConfigAndQueueMapping,
    TopicRouteData,
)
from cometmq.proto.body import Body
from cometmq.proto.codes import RequestCode
from cometmq.proto.errors import BodyError
from cometmq.proto.fastjson import ObjectKey, loads

PROPERTIES = {
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
}
NOT_MODELLED = {
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: "tools print whatever object it is",
    RequestCode.AUTH_CREATE_USER: "comes with users and ACL",
    RequestCode.GET_BROKER_LITE_INFO: "comes with lite topics",
}
REFUSED_BY_APACHE_TOO = {
    "34-8-request": "names without quotes",
    "41-3-request": "names without quotes",
    "41-4-request": "no client id and no queues",
}
JSON_BODIES = [body for body in BODIES if body.code not in PROPERTIES | NOT_MODELLED.keys()]
SOUND = [body for body in JSON_BODIES if body.name not in REFUSED_BY_APACHE_TOO]


def class_of(body: WireBody) -> type[Body]:
    return (REQUEST_BODIES if body.is_request else RESPONSE_BODIES)[body.code]


def written(value: Body, body: WireBody) -> bytes:
    """Encode in the requested form. 105 has two, which the captured answer distinguishes."""
    if isinstance(value, TopicRouteData) and '"0":' in body.text:
        return value.encode_standard()
    return value.encode()


def test_there_are_as_many_captured_bodies_as_were_counted() -> None:
    assert (len(BODIES), len(JSON_BODIES), len(SOUND)) == (141, 130, 127)
    assert {body.code for body in BODIES if body.code in NOT_MODELLED} == NOT_MODELLED.keys()


@pytest.mark.parametrize("body", SOUND, ids=lambda body: body.name)
def test_a_captured_body_is_read_and_what_we_write_of_it_reads_the_same(body: WireBody) -> None:
    value = class_of(body).decode(body.data)
    again = class_of(body).decode(written(value, body))
    assert again == value


@pytest.mark.parametrize("body", SOUND, ids=lambda body: body.name)
def test_both_roads_of_reading_give_the_same_body(body: WireBody) -> None:
    assert class_of(body).from_tree(loads(body.data)) == class_of(body).decode(body.data)
    assert class_of(body).decode(b"/* by hand */" + body.data) == class_of(body).decode(body.data)


@pytest.mark.parametrize("body", SOUND, ids=lambda body: body.name)
def test_no_member_of_a_captured_body_is_lost(body: WireBody) -> None:
    value = class_of(body).decode(body.data)
    assert_holds(loads(written(value, body)), loads(body.data), "$")


def assert_holds(ours: object, theirs: object, path: str) -> None:
    """Ours has all members of theirs, and may add defaults that a hand-made body leaves out."""
    if isinstance(theirs, dict | ObjectKey):
        assert isinstance(ours, dict | ObjectKey), path
        for name, member in theirs.items():  # pyright: ignore[reportUnknownVariableType]  # A tree.
            assert name in ours, f"{path}.{name}"
            assert_holds(ours[name], member, f"{path}.{name}")  # pyright: ignore[reportUnknownArgumentType]  # A tree.
    else:
        assert ours == theirs, path


@pytest.mark.parametrize(
    "body", [body for body in SOUND if body.is_from_apache], ids=lambda body: body.name
)
def test_what_apache_wrote_is_written_again_to_the_byte(body: WireBody) -> None:
    assert written(class_of(body).decode(body.data), body) == body.data


@pytest.mark.parametrize(
    "body", [body for body in BODIES if body.name in REFUSED_BY_APACHE_TOO], ids=lambda b: b.name
)
def test_what_apache_refused_is_refused(body: WireBody) -> None:
    assert body.response_code == 1
    with pytest.raises(BodyError):
        class_of(body).decode(body.data)


def all_classes() -> list[type[Body]]:
    return [
        value
        for name in bodies.__all__
        if isinstance(value := getattr(bodies, name), type) and issubclass(value, Body)
    ]


@pytest.mark.parametrize("body", all_classes())
def test_members_stand_in_the_order_in_which_apache_writes_them(body: type[Body]) -> None:
    if body is TopicConfigAndQueueMapping:
        pytest.skip("its own member comes after the inherited ones; no reader looks at the order")
    names = [field.encode_name for field in msgspec.structs.fields(body)]
    assert names == sorted(names)


@pytest.mark.parametrize("body", all_classes())
def test_a_default_that_is_not_null_is_written(body: type[Body]) -> None:
    for field in msgspec.structs.fields(body):
        assert field.default in (msgspec.NODEFAULT, None), field.name


@pytest.mark.parametrize("body", all_classes())
def test_tables_that_are_missing_are_new_each_time(body: type[Body]) -> None:
    for field in msgspec.structs.fields(body):
        if field.default_factory is not msgspec.NODEFAULT and isinstance(
            field.default_factory(), dict
        ):
            assert field.default_factory() is not field.default_factory()


@pytest.mark.parametrize("body", all_classes())
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_body_that_can_be_made_reads_back(body: type[Body], data: st.DataObject) -> None:
    value = data.draw(any_body(body))
    assert body.decode(value.encode()) == value
    assert body.decode(b"/* by hand */" + value.encode()) == value
    if isinstance(value, TopicRouteData):
        assert body.decode(value.encode_standard()) == value


def test_the_tables_name_codes_that_exist() -> None:
    for code in REQUEST_BODIES | RESPONSE_BODIES:
        assert RequestCode(code)


def test_a_body_that_is_the_wrong_thing_names_class_and_member() -> None:
    with pytest.raises(BodyError, match=r"SubscriptionData: .*`\$\.tagsSet\[1\]`"):
        SubscriptionData.decode(b'{"topic":"T","tagsSet":["a",[]]}')
