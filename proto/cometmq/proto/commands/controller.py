"""What brokers and tools ask of the controller, which elects masters.

`invoke_time` is the asker's clock in ms: all replicas of the controller judge by it who is alive.
"""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header


class AlterSyncStateSet(Header):
    """1001 CONTROLLER_ALTER_SYNC_STATE_SET: these replicas are in sync; they are the body."""

    broker_name: str
    master_broker_id: I64
    master_epoch: I32
    invoke_time: I64 | None = None


class AlterSyncStateSetResponse(Header):
    """The epoch of the set that was made."""

    new_sync_state_set_epoch: I32


class ElectMaster(Header):
    """1002 CONTROLLER_ELECT_MASTER: make one of them the master."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: I64 = -1  # -1: whichever.
    designate_elect: bool = False  # An operator says so: this one and no other.
    invoke_time: I64 | None = None


class ElectMasterResponse(Header):
    """Who is the master; nobody, when the fields are absent. The body is its sync state set."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


class RegisterBrokerToController(Header):
    """1003 CONTROLLER_REGISTER_BROKER: this broker is up, under the id that it was given."""

    cluster_name: str
    broker_name: str
    broker_id: I64
    broker_address: str
    invoke_time: I64 | None = None


class RegisterBrokerToControllerResponse(Header):
    """Who is the master."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


class GetReplicaInfo(Header):
    """1004 CONTROLLER_GET_REPLICA_INFO: who is the master of these?"""

    broker_name: str


class GetReplicaInfoResponse(Header):
    """Who is the master; the body is its sync state set."""

    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None


class GetMetadataInfoResponse(Header):
    """The answer of 1005 CONTROLLER_GET_METADATA_INFO: which controller leads."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False  # Whether the one that was asked leads.
    peers: str | None = None


class CleanBrokerData(Header):
    """1011 CLEAN_BROKER_DATA: forget a broker, or some of its replicas."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None  # Joined by semicolons; absent: all.
    is_clean_living_broker: bool = False
    invoke_time: I64 | None = None


class GetNextBrokerId(Header):
    """1012 CONTROLLER_GET_NEXT_BROKER_ID: which id would be free?"""

    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponse(Header):
    """An id that is free."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: I64 | None = None


class ApplyBrokerId(Header):
    """1013 CONTROLLER_APPLY_BROKER_ID: take this id."""

    cluster_name: str
    broker_name: str
    applied_broker_id: I64
    register_check_code: str  # Whoever repeats the request proves by it that it was the same.


class ApplyBrokerIdResponse(Header):
    """The broker whose id was taken."""

    cluster_name: str | None = None
    broker_name: str | None = None
