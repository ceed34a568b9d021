"""What to do about an error of the Kafka client: values in, values out.

Strategy: librdkafka describes an error by a code and three flags (fatal, retriable, requires abort). REMEDIES maps the codes
that ask for something else than the door; whatever is not in it goes through the door, where a restart is always safe.

    EXIT    the broker or the settings refuse for good: exit 5, with the likely cause
    DOOR    drop the producer and go through the door again
    REPEAT  ask again; only for what reads. A transactional call is never made twice: REPEAT means DOOR there

The flags decide one thing only: a right that is missing for a topic while a Kafka transaction is open ("requires abort")
leads to the door and not to an exit, because the route may have been forbidden a moment ago; the door's own look at the topic
then tells whether it is a row's route or the pipeline's topic.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from cdc.errors import CdcError, Fenced, KafkaRefused, Poisoned, Retriable


class Remedy(Enum):
    """What an error asks for."""

    EXIT = "exit"
    DOOR = "door"
    REPEAT = "repeat"


class Code(IntEnum):
    """The error codes that we tell apart, as in the protocol; those below 0 are librdkafka's own."""

    BAD_MSG = -199
    DESTROY = -197
    TRANSPORT = -195
    RESOLVE = -193
    PARTITION_EOF = -191
    ALL_BROKERS_DOWN = -187
    TIMED_OUT = -185
    INVALID_ARG = -186
    QUEUE_FULL = -184
    TIMED_OUT_QUEUE = -166
    WAIT_COORD = -180
    UNKNOWN_TOPIC = -188
    UNKNOWN_PARTITION = -190
    SSL = -181
    AUTHENTICATION = -169
    UNSUPPORTED_FEATURE = -165
    FATAL = -150
    INCONSISTENT = -149
    STATE = -172
    CONFLICT = -173
    FENCED = -144
    OFFSET_OUT_OF_RANGE = 1
    INVALID_MSG = 2
    UNKNOWN_TOPIC_OR_PART = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MSG_SIZE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    SASL_AUTHENTICATION_FAILED = 58
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90


class Fault(NamedTuple):
    """An error of the client as values: the code, its name, librdkafka's words and its flags."""

    code: int
    name: str
    text: str
    fatal: bool = False
    retriable: bool = False
    requires_abort: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


REMEDIES: dict[int, Remedy] = {
    **dict.fromkeys(
        (
            Code.AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED, Code.UNSUPPORTED_SASL_MECHANISM,
            Code.ILLEGAL_SASL_STATE, Code.SECURITY_DISABLED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED, Code.UNSUPPORTED_FEATURE,
            Code.UNSUPPORTED_VERSION, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, Code.UNSUPPORTED_COMPRESSION_TYPE,
            Code.INVALID_TRANSACTION_TIMEOUT, Code.INVALID_PARTITIONS, Code.INVALID_REPLICATION_FACTOR,
            Code.INVALID_CONFIG, Code.POLICY_VIOLATION,
        ),
        Remedy.EXIT,
    ),
    **dict.fromkeys(
        (
            Code.TRANSPORT, Code.RESOLVE, Code.ALL_BROKERS_DOWN, Code.TIMED_OUT, Code.TIMED_OUT_QUEUE, Code.WAIT_COORD,
            Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER, Code.REQUEST_TIMED_OUT, Code.BROKER_NOT_AVAILABLE,
            Code.REPLICA_NOT_AVAILABLE, Code.NETWORK_EXCEPTION, Code.COORDINATOR_LOAD_IN_PROGRESS,
            Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR, Code.NOT_CONTROLLER, Code.FENCED_LEADER_EPOCH,
            Code.UNKNOWN_LEADER_EPOCH, Code.OFFSET_NOT_AVAILABLE,
        ),
        Remedy.REPEAT,
    ),
}  # fmt: skip
"""What each code asks for; a code that is not listed asks for the door."""

FENCES = frozenset({Code.FENCED, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH})
"""The broker refuses our epoch: somebody newer, or a Kafka transaction that it has timed out."""

REFUSALS = frozenset(
    {
        Code.INVALID_MSG, Code.BAD_MSG, Code.MSG_SIZE_TOO_LARGE, Code.INVALID_TIMESTAMP, Code.INVALID_RECORD, Code.TOPIC_EXCEPTION,
        Code.UNKNOWN_PARTITION, Code.INCONSISTENT,
    }
)  # fmt: skip
"""The broker refuses a record, whoever sends it and whenever: the Kafka transaction that holds it can never be committed."""

HINTS: dict[int, str] = {
    Code.AUTHENTICATION: 'see kafka."sasl.username", "sasl.password" and "security.protocol"',
    Code.SASL_AUTHENTICATION_FAILED: 'see kafka."sasl.username" and "sasl.password"',
    Code.UNSUPPORTED_SASL_MECHANISM: 'set kafka."sasl.mechanism" to one that the listener of the broker offers',
    Code.ILLEGAL_SASL_STATE: 'set kafka."security.protocol" as the listener of the broker has it',
    Code.SECURITY_DISABLED: "the broker has no authorizer; ACLs cannot be read",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant WRITE and DESCRIBE on the transactional id of the pipeline",
    Code.CLUSTER_AUTHORIZATION_FAILED: "grant the operation on the cluster, or create the topics by hand",
    Code.TOPIC_AUTHORIZATION_FAILED: "grant WRITE, READ, DESCRIBE and DESCRIBE_CONFIGS on the topic",
    Code.UNSUPPORTED_FEATURE: "the broker is too old for idempotent, transactional or administrative requests: use a newer one",
    Code.UNSUPPORTED_VERSION: "the broker is too old for idempotent, transactional or administrative requests: use a newer one",
    Code.INVALID_TRANSACTION_TIMEOUT: 'lower kafka."transaction.timeout.ms" or raise transaction.max.timeout.ms of the broker',
    Code.INVALID_REPLICATION_FACTOR: "set topics.create.replication_factor to no more than the number of brokers",
    Code.INVALID_PARTITIONS: "set topics.create.partitions to 1 or more",
    Code.POLICY_VIOLATION: "ask for what the broker's create.topic.policy allows, or create the topics by hand",
    Code.INVALID_CONFIG: "see topics.create",
}
"""The likely way out of what is refused for good."""


def remedy(fault: Fault, *, transactional: bool) -> Remedy:
    """Classify an error of a transactional call, or of one that only reads."""
    if fault.code == Code.TOPIC_AUTHORIZATION_FAILED and (fault.requires_abort or transactional):
        return Remedy.DOOR
    found = REMEDIES.get(fault.code, Remedy.DOOR)
    return Remedy.DOOR if transactional and found is Remedy.REPEAT else found


def exception(fault: Fault, doing: str, *, transactional: bool) -> CdcError:
    """Return the exception that names the remedy; `doing` says what was being tried."""
    what = f"Kafka, while {doing}: {fault}"
    if remedy(fault, transactional=transactional) is Remedy.EXIT:
        return KafkaRefused(what, HINTS.get(fault.code, "see the broker's log"))
    if transactional and fault.code in REFUSALS:
        return Poisoned(what)
    return Fenced(what) if fault.code in FENCES else Retriable(what)


_BROKERS_CERTIFICATE = (
    'see kafka."ssl.ca.location"; if it names the right authority, the broker\'s certificate has expired, or has another name'
    ' than "bootstrap.servers"'
)
_OUR_CERTIFICATE = (
    'see kafka."ssl.certificate.location" and "ssl.key.location": the listener wants a certificate that it can trust,'
    " and not an expired one"
)

JUDGEMENTS: dict[str, str] = {
    "certificate verify failed": _BROKERS_CERTIFICATE,
    "alert certificate": _OUR_CERTIFICATE,
    "alert bad certificate": _OUR_CERTIFICATE,
    "alert unknown ca": _OUR_CERTIFICATE,
}
"""OpenSSL's words, which have no codes of their own -> what to do. A judgement about a certificate is as final as one about a
password; that a broker hangs up is not: one that is being stopped does the same as one that does not speak our protocol."""


def out_of_reach(fault: Fault | None, doing: str) -> CdcError:
    """Return what to raise when no broker can be reached; `fault` is the last reason that was heard, if any was."""
    why = "each hangs up and does not say why" if fault is None else fault.text
    what = f"no Kafka broker can be reached, while {doing} ({why})"
    for words, fix in JUDGEMENTS.items():
        if words in why:
            return KafkaRefused(what, fix)
    return Retriable(what, 'start the broker, or correct kafka."bootstrap.servers" or "security.protocol"')
