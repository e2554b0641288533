"""The part of etcd's v3 gRPC API that Penstock speaks: the messages, and the methods that carry them.

The messages are made when this module is imported, from the table below: their names, field names and
numbers are those of etcd's own `rpc.proto` and `kv.proto`. So there is no generated code to keep in
step with the installed protobuf, and its compiled reader does the work all the same. They live in a pool
of their own: another etcd client in the process does not clash with them.

Fields that Penstock neither sets nor reads are left out, as protobuf allows. Enums are numbers. Every
field has presence, so a compare with revision 0 is sent as what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = [
    "AUTHENTICATE",
    "COMPACT",
    "COMPARE_MOD",
    "EVENT_DELETE",
    "LEASE_GRANT",
    "LEASE_KEEP_ALIVE",
    "LEASE_LEASES",
    "LEASE_REVOKE",
    "LEASE_TIME_TO_LIVE",
    "RANGE",
    "TXN",
    "WATCH",
    "Message",
    "Method",
]

# One line for each message: its name, then number:field:type. `*` marks a list.
_SCHEMA: Final = """
ResponseHeader          3:revision:int64
KeyValue                1:key:bytes 2:create_revision:int64 3:mod_revision:int64 5:value:bytes 6:lease:int64
Event                   1:type:int32 2:kv:KeyValue
RangeRequest            1:key:bytes 2:range_end:bytes 3:limit:int64 4:revision:int64
RangeResponse           1:header:ResponseHeader 2:kvs:*KeyValue 3:more:bool
PutRequest              1:key:bytes 2:value:bytes 3:lease:int64
DeleteRangeRequest      1:key:bytes 2:range_end:bytes
RequestOp               1:request_range:RangeRequest 2:request_put:PutRequest
                        3:request_delete_range:DeleteRangeRequest
ResponseOp              1:response_range:RangeResponse
Compare                 1:result:int32 2:target:int32 3:key:bytes 6:mod_revision:int64
TxnRequest              1:compare:*Compare 2:success:*RequestOp 3:failure:*RequestOp
TxnResponse             1:header:ResponseHeader 2:succeeded:bool 3:responses:*ResponseOp
CompactionRequest       1:revision:int64 2:physical:bool
CompactionResponse      1:header:ResponseHeader
WatchCreateRequest      1:key:bytes 2:range_end:bytes 3:start_revision:int64 4:progress_notify:bool
                        8:fragment:bool
WatchRequest            1:create_request:WatchCreateRequest
WatchResponse           1:header:ResponseHeader 2:watch_id:int64 3:created:bool 4:canceled:bool
                        5:compact_revision:int64 6:cancel_reason:string 7:fragment:bool 11:events:*Event
LeaseGrantRequest       1:TTL:int64 2:ID:int64
LeaseGrantResponse      1:header:ResponseHeader 2:ID:int64 3:TTL:int64
LeaseRevokeRequest      1:ID:int64
LeaseRevokeResponse     1:header:ResponseHeader
LeaseKeepAliveRequest   1:ID:int64
LeaseKeepAliveResponse  1:header:ResponseHeader 2:ID:int64 3:TTL:int64
LeaseTimeToLiveRequest  1:ID:int64
LeaseTimeToLiveResponse 1:header:ResponseHeader 2:ID:int64 3:TTL:int64
LeaseLeasesRequest
LeaseStatus             1:ID:int64
LeaseLeasesResponse     1:header:ResponseHeader 2:leases:*LeaseStatus
AuthenticateRequest     1:name:string 2:password:string
AuthenticateResponse    1:header:ResponseHeader 2:token:string
"""

COMPARE_MOD: Final = 2  # Compare.CompareTarget; EQUAL, the only result asked for, is 0
EVENT_DELETE: Final = 1  # Event.EventType

Message: TypeAlias = Any  # made at run time, so no type checker knows its fields

_PACKAGE: Final = "etcdserverpb"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}


def _load() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock/etcd.proto", package=_PACKAGE, syntax="proto2"
    )
    for word in _SCHEMA.split():
        if ":" not in word:
            message = file.message_type.add(name=word)
            continue
        number, name, kind = word.split(":")
        repeated, kind = kind.startswith("*"), kind.removeprefix("*")
        message.field.add(
            name=name,
            number=int(number),
            label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
            type=_SCALARS.get(kind, _Field.TYPE_MESSAGE),
            type_name=None if kind in _SCALARS else f".{_PACKAGE}.{kind}",
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}")
        )
        for message in file.message_type
    }


_MESSAGES: Final = _load()


@dataclass(frozen=True, slots=True)
class Method:
    """One remote method: where it is, and the types it takes and gives."""

    path: str
    request: Any
    response: Any


def _method(service: str, name: str, messages: str) -> Method:
    return Method(
        path=f"/{_PACKAGE}.{service}/{name}",
        request=_MESSAGES[f"{messages}Request"],
        response=_MESSAGES[f"{messages}Response"],
    )


RANGE: Final = _method("KV", "Range", "Range")
TXN: Final = _method("KV", "Txn", "Txn")
COMPACT: Final = _method("KV", "Compact", "Compaction")
WATCH: Final = _method("Watch", "Watch", "Watch")
LEASE_GRANT: Final = _method("Lease", "LeaseGrant", "LeaseGrant")
LEASE_REVOKE: Final = _method("Lease", "LeaseRevoke", "LeaseRevoke")
LEASE_KEEP_ALIVE: Final = _method("Lease", "LeaseKeepAlive", "LeaseKeepAlive")
LEASE_TIME_TO_LIVE: Final = _method("Lease", "LeaseTimeToLive", "LeaseTimeToLive")
LEASE_LEASES: Final = _method("Lease", "LeaseLeases", "LeaseLeases")
AUTHENTICATE: Final = _method("Auth", "Authenticate", "Authenticate")
