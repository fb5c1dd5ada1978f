"""The table from request code to handler and limit; here a refusal becomes an answer.

Only this module answers for an exception of a handler. Whatever a peer sends, a handler raises
nothing but its refusals. Any other exception is our own bug: it is answered with code 1, and logged
once for each place in the code. The log names that place and not the exception's text, which may
contain what the peer sent.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from cometmq.nameserver import handlers
from cometmq.nameserver.errors import RequestError
from cometmq.proto.codes import RequestCode as Code, ResponseCode, request_name
from cometmq.proto.errors import FieldError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.nameserver.state import Context
    from cometmq.proto.command import Command

    Handler: TypeAlias = Callable[[Command, Context], Command]

log = logging.getLogger(__name__)

REMARK_LENGTH_MAX: Final = 4096
"""Remarks repeat what a peer sent, which may be long."""


class Row(NamedTuple):
    """How one request code is served."""

    handler: Handler
    body_limit: Literal["registration_size_max", "small_body_size_max"] = "small_body_size_max"
    """The setting that limits the body, even if the request has no use for one."""
    field_refusal: ResponseCode = ResponseCode.SYSTEM_ERROR
    """The code for a missing or wrong field. Where Apache would look up null and find nothing, it
    is the code for something that does not exist."""


TABLE: Mapping[int, Row] = {
    Code.PUT_KV_CONFIG: Row(handlers.put_kv_config),
    Code.GET_KV_CONFIG: Row(handlers.get_kv_config, field_refusal=ResponseCode.QUERY_NOT_FOUND),
    Code.DELETE_KV_CONFIG: Row(handlers.delete_kv_config),
    Code.REGISTER_BROKER: Row(handlers.register_broker, "registration_size_max"),
    Code.UNREGISTER_BROKER: Row(handlers.unregister_broker),
    Code.GET_ROUTEINFO_BY_TOPIC: Row(
        handlers.get_route, field_refusal=ResponseCode.TOPIC_NOT_EXIST
    ),
    Code.GET_BROKER_CLUSTER_INFO: Row(handlers.get_broker_cluster_info),
    Code.WIPE_WRITE_PERM_OF_BROKER: Row(handlers.wipe_write_permission),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Row(handlers.get_all_topics),
    Code.DELETE_TOPIC_IN_NAMESRV: Row(handlers.delete_topic),
    Code.REGISTER_TOPIC_IN_NAMESRV: Row(handlers.register_topic),
    Code.GET_KVLIST_BY_NAMESPACE: Row(
        handlers.get_kv_namespace, field_refusal=ResponseCode.QUERY_NOT_FOUND
    ),
    Code.GET_TOPICS_BY_CLUSTER: Row(handlers.get_topics_of_cluster),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Row(handlers.get_system_topics),
    Code.GET_UNIT_TOPIC_LIST: Row(handlers.get_unit_topics),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Row(handlers.get_unit_subscribed_topics),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Row(handlers.get_unit_subscribed_topics_of_no_unit),
    Code.UPDATE_NAMESRV_CONFIG: Row(handlers.update_config),
    Code.GET_NAMESRV_CONFIG: Row(handlers.get_config),
    Code.QUERY_DATA_VERSION: Row(handlers.query_data_version),
    Code.ADD_WRITE_PERM_OF_BROKER: Row(handlers.add_write_permission),
    Code.GET_BROKER_MEMBER_GROUP: Row(handlers.get_broker_member_group),
    Code.BROKER_HEARTBEAT: Row(handlers.broker_heartbeat),
}
"""The requests that a name server serves; any other is answered with code 3."""


class Dispatcher:
    """Answers requests by a table."""

    def __init__(self, table: Mapping[int, Row] = TABLE) -> None:
        self._table = {int(code): row for code, row in table.items()}
        self._reported: set[tuple[int, str]] = set()

    def serves(self, code: int) -> bool:
        """Whether there is a handler for a request code."""
        return code in self._table

    def answer(self, request: Command, context: Context) -> Command:
        """Make the answer to a request."""
        row = self._table.get(request.code)
        if row is None:
            return request.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {request.code} not supported",
            )
        try:
            _check_body(request, row, context)
            return row.handler(request, context)
        except RequestError as error:
            return request.answer(error.code, remark=error.remark[:REMARK_LENGTH_MAX])
        except FieldError as error:
            return request.answer(row.field_refusal, remark=str(error)[:REMARK_LENGTH_MAX])
        except RemoteProtocolError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error)[:REMARK_LENGTH_MAX])
        except Exception as error:
            return self._mistake(request, context, error)

    def _mistake(self, request: Command, context: Context, error: Exception) -> Command:
        name = request_name(request.code)
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        if (request.code, where) not in self._reported:
            self._reported.add((request.code, where))
            log.error(
                "%s from %s: %s at %s, in %s; from now on not logged for this place",
                name,
                context.peer,
                type(error).__name__,
                where,
                place.name,
            )
        return request.answer(
            ResponseCode.SYSTEM_ERROR,
            remark=f"{name}: a mistake of this name server ({type(error).__name__}), see its log",
        )


def _check_body(request: Command, row: Row, context: Context) -> None:
    body = request.body
    if body is None:
        return
    size = len(body)
    limit: int = getattr(context.state.config, row.body_limit)
    if size > limit:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"body has {size} bytes, this name server's {row.body_limit} is {limit}",
        )
