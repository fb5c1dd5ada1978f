"""Bits and small numbers inside fields."""

from __future__ import annotations

import pytest

from cometmq.proto.commands import (
    ForbiddenType,
    Permission,
    PullMessage,
    PullSysFlag,
    TransactionEnd,
    may_read,
    may_write,
)
from cometmq.proto.sysflag import TRANSACTION_MASK, SysFlag


def pull(sys_flag: int) -> PullMessage:
    return PullMessage("g", "T", 0, 0, 32, sys_flag, 0, 15_000, 0)


def test_the_bits_of_a_pull_are_apaches() -> None:
    assert [flag.value for flag in PullSysFlag] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("sys_flag", range(32))
def test_a_pull_says_what_its_bits_mean(sys_flag: int) -> None:
    request = pull(sys_flag)
    assert request.commits_offset == (PullSysFlag.COMMIT_OFFSET in PullSysFlag(sys_flag))
    assert request.may_suspend == (PullSysFlag.SUSPEND in PullSysFlag(sys_flag))
    assert request.has_subscription == (PullSysFlag.SUBSCRIPTION in PullSysFlag(sys_flag))
    assert request.is_lite == (PullSysFlag.LITE_PULL in PullSysFlag(sys_flag))


@pytest.mark.parametrize("perm", range(16))
def test_a_permission_is_read_off_its_bits(perm: int) -> None:
    assert may_read(perm) == (perm in {4, 5, 6, 7, 12, 13, 14, 15})
    assert may_write(perm) == (perm in {2, 3, 6, 7, 10, 11, 14, 15})
    assert may_read(perm) == (Permission.READ in Permission(perm))
    assert may_write(perm) == (Permission.WRITE in Permission(perm))


def test_a_transaction_ends_with_the_bits_of_its_message() -> None:
    assert [int(end) for end in TransactionEnd] == [
        0,
        int(SysFlag.TRANSACTION_COMMITTED),
        TRANSACTION_MASK,
    ]


def test_the_reasons_of_a_forbidden_pull_are_numbered_as_apaches() -> None:
    assert [reason.name for reason in ForbiddenType] == [
        "BROKER",
        "GROUP",
        "TOPIC",
        "BROADCASTING",
        "SUBSCRIPTION",
    ]
    assert [int(reason) for reason in ForbiddenType] == [1, 2, 3, 4, 5]
