"""Users and policies of ACL 2.0, whose data is in the bodies.

The names are optional, because a request without one is answered with INVALID_PARAMETER.
"""

from __future__ import annotations

from cometmq.proto.header import Header


class AuthUser(Header):
    """3001 AUTH_CREATE_USER, 3002 _UPDATE_USER, 3003 _DELETE_USER and 3004 _GET_USER."""

    username: str | None = None


class AuthListUser(Header):
    """3005 AUTH_LIST_USER."""

    filter: str | None = None


class AuthAcl(Header):
    """3006 AUTH_CREATE_ACL, 3007 _UPDATE_ACL and 3009 _GET_ACL."""

    subject: str | None = None


class AuthDeleteAcl(Header):
    """3008 AUTH_DELETE_ACL."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AuthListAcl(Header):
    """3010 AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None
