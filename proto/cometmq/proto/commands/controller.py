"""Requests of brokers and tools to the controller, which elects masters.

`invoke_time` is the sender's clock in ms, by which all replicas of the controller judge who is
alive.
"""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header


class AlterSyncStateSet(Header):
    """1001 CONTROLLER_ALTER_SYNC_STATE_SET: the replicas in the body are in sync."""

    broker_name: str
    master_broker_id: I64
    master_epoch: I32
    invoke_time: I64 | None = None


class AlterSyncStateSetResponse(Header):
    """The epoch of the new set."""

    new_sync_state_set_epoch: I32


class ElectMaster(Header):
    """1002 CONTROLLER_ELECT_MASTER: make one of the replicas the master."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: I64 = -1  # -1: any.
    designate_elect: bool = False  # By order of an operator: this one and no other.
    invoke_time: I64 | None = None


class ElectMasterResponse(Header):
    """The master; there is none if the fields are absent. The body is its sync state set."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


class RegisterBrokerToController(Header):
    """1003 CONTROLLER_REGISTER_BROKER: this broker is up, under its assigned id."""

    cluster_name: str
    broker_name: str
    broker_id: I64
    broker_address: str
    invoke_time: I64 | None = None


class RegisterBrokerToControllerResponse(Header):
    """The master of the broker name."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


class GetReplicaInfo(Header):
    """1004 CONTROLLER_GET_REPLICA_INFO: ask for the master of a broker name."""

    broker_name: str


class GetReplicaInfoResponse(Header):
    """The master; the body is its sync state set."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None


class GetMetadataInfoResponse(Header):
    """The answer to 1005 CONTROLLER_GET_METADATA_INFO: which controller leads."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False  # Whether the asked controller leads.
    peers: str | None = None


class CleanBrokerData(Header):
    """1011 CLEAN_BROKER_DATA: forget a broker, or some of its replicas."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None  # Joined by semicolons; absent: all.
    is_clean_living_broker: bool = False
    invoke_time: I64 | None = None


class GetNextBrokerId(Header):
    """1012 CONTROLLER_GET_NEXT_BROKER_ID: ask for a free id."""

    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponse(Header):
    """A free id."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: I64 | None = None


class ApplyBrokerId(Header):
    """1013 CONTROLLER_APPLY_BROKER_ID: take this id."""

    cluster_name: str
    broker_name: str
    applied_broker_id: I64
    register_check_code: str  # Proves that a repeated request comes from the same broker.


class ApplyBrokerIdResponse(Header):
    """The broker whose id was taken."""

    cluster_name: str | None = None
    broker_name: str | None = None
