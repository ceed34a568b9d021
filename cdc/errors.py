"""Errors, named by what to do about them.

Strategy: one tree, split by remedy and not by origin. Whoever raises says what was wrong, where, and how to fix it, in one
line that a person on call can act on; whoever catches looks only at the branch. No message carries a payload, a key or a
secret.

    CdcError
    |-- ProtocolError         bytes that break the protocol: stop, report a bug                exit 1
    |-- ConfigurationError    fix the settings or the schema folder                            exit 2
    |-- PostgresRefused       fix the server, the role, the table or the mapping               exit 3
    |-- ContinuityError       the log cannot be proved complete: an operator decides           exit 4
    |-- SinkRefused           fix the broker, its rights or the limit                          exit 5
    |   `-- KafkaRefused      the same of Kafka: the broker, the topic, the ACL or the limit
    |-- IdentityTaken         somebody else uses our transactional.id                          exit 6
    |-- StoppedByPolicy       an invalid row, and the policy is to stop                        exit 7
    |-- AuditFailed           an audit or a check found something                              exit 8
    |-- InvalidEvent          this row cannot become a record: park it or stop, by policy
    |-- NoTransaction         an application appends an event outside of a transaction: open one
    `-- Retriable             back off and go through the door again
        |-- SlotBusy          another instance owns the slot: stand by
        |-- OnHold            an operator's command changes the position: wait for its end
        |-- Fenced            a newer instance took over, or the broker ended our Kafka transaction
        |-- Poisoned          the broker refused a record for good: the next passage looks for it
        `-- TransactionTimedOut   one PostgreSQL transaction took longer than transaction.timeout.ms

An error outside the tree is a bug: the process exits with 1 and restarts safely, because recovery is proved.
"""

from collections.abc import Iterable

NEAR = 0.75
"""Similarity (difflib's ratio) from which a name is taken for a misspelt one: 0.6, the usual, guesses wildly."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, for a fix that asks `did you mean ..?`: 0.3 ms for a hundred names."""
    import difflib  # noqa: PLC0415 - loaded by who mistypes

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=NEAR)), None)


class CdcError(Exception):
    """What was wrong and where (`what`), and what to do about it (`fix`)."""

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}. Fix: {self.fix}" if self.fix else self.what


class ProtocolError(CdcError):
    """Bytes from PostgreSQL or Kafka that the protocol does not allow."""


class ConfigurationError(CdcError):
    """A setting or a file of the schema folder is wrong; nothing was started."""

    exit_code = 2


class PostgresRefused(CdcError):
    """PostgreSQL refuses for good: password, privilege, wal_level, table, mapping."""

    exit_code = 3


class ContinuityError(CdcError):
    """It cannot be proved that the log goes on where the position stands; streaming would skip or repeat rows."""

    exit_code = 4


class SinkRefused(CdcError):
    """The broker refuses for good: user, rights, what `cdc init` makes, a limit, no progress."""

    exit_code = 5


class KafkaRefused(SinkRefused):
    """Kafka refuses for good: authentication, ACL, topic, transaction limit."""


class IdentityTaken(CdcError):
    """Another producer uses our transactional.id without owning our slot."""

    exit_code = 6


class StoppedByPolicy(CdcError):
    """An invalid row met `on_invalid = "stop"`; it is neither published nor confirmed."""

    exit_code = 7


class AuditFailed(CdcError):
    """An audit or a check found something; the findings were printed."""

    exit_code = 8


class InvalidEvent(CdcError):
    """A row that cannot become a record.

    `reason` is a short word for metrics and for the dead letter's `cdc.reason` header (schema, mapping, route, size,
    tombstone, refused); `what` adds the place (a JSON path or a column), what was expected and what kind of value came, and never
    the value itself.
    """

    def __init__(self, reason: str, what: str, fix: str = "") -> None:
        super().__init__(what, fix)
        self.reason = reason


class NoTransaction(CdcError):
    """An application appends an event on a connection in autocommit: the event and the change would not commit together."""


class Retriable(CdcError):
    """A fault that time or another passage through the door heals."""


class SlotBusy(Retriable):
    """Another connection owns the slot; `active_pid` is its backend."""

    def __init__(self, slot: str, active_pid: int | None) -> None:
        super().__init__(f"replication slot {slot!r} is active for backend pid {active_pid}")
        self.slot = slot
        self.active_pid = active_pid


class OnHold(Retriable):
    """A command that changes the position is under way, or was interrupted; `hold` is what it wrote of itself."""

    def __init__(self, hold: str) -> None:
        super().__init__(
            f"the pipeline is on hold for a command that changes the position: {hold}",
            "it goes on by itself when the command has ended; run the command again if it was interrupted",
        )
        self.hold = hold


class Fenced(Retriable):
    """The broker refuses our epoch: a newer instance called init_transactions, or the broker timed our transaction out."""


class Poisoned(Retriable):
    """The broker refused a record for good, and with it the whole Kafka transaction.

    `place` names the record (`cdc.event.name_of`) if it is known (only a passage that looks for it knows), `why` the broker's words.
    """

    def __init__(self, what: str, fix: str = "", *, place: bytes | None = None, why: str = "") -> None:
        super().__init__(what, fix)
        self.place = place
        self.why = why


class TransactionTimedOut(Retriable):
    """One PostgreSQL transaction did not fit into one Kafka transaction of `timeout_s` seconds."""

    def __init__(self, rows: int, seconds: float, timeout_s: float) -> None:
        super().__init__(
            f"a PostgreSQL transaction with {rows} outbox rows so far took {seconds:.1f} s, "
            f"longer than transaction.timeout.ms = {round(timeout_s * 1000)}",
            'raise kafka."transaction.timeout.ms" and the broker\'s transaction.max.timeout.ms',
        )
        self.rows = rows
        self.seconds = seconds
        self.timeout_s = timeout_s
