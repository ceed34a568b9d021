"""What an error of RabbitMQ asks for: values in, an exception of our tree out, no I/O.

The broker closes a channel or the connection with a reply code (AMQP 0-9-1, section 1.2 "Class and method ids", constants).
403 and 530 are rights and names that an operator mends; 406 and the framing errors are said of the message that was sent
last, which the next passages look for; everything else heals by time, or by another passage through the door.
"""

from __future__ import annotations

from pika import exceptions

from cdc.errors import CdcError, Poisoned, Retriable, SinkRefused

ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
FRAME_ERROR, SYNTAX_ERROR, COMMAND_INVALID, NOT_ALLOWED, NOT_IMPLEMENTED = 501, 502, 503, 530, 540

POISON = frozenset({PRECONDITION_FAILED, FRAME_ERROR, SYNTAX_ERROR})
"""What is said of one message: larger than max_message_size, or properties that do not fit into a frame."""

REFUSED = {
    ACCESS_REFUSED: "grant the user configure, write and read on the pipeline's exchange and queues",
    NOT_FOUND: "run `cdc init`; if it existed before, see `cdc recover`",
    COMMAND_INVALID: "see the broker's log",
    NOT_ALLOWED: "create the virtual host, and let the user into it",
    NOT_IMPLEMENTED: "use RabbitMQ 3.10 or newer",
}
"""What an operator has to mend, with how."""

ABSENT = "down or inaccessible"
"""What a 404 says of a queue that exists while the node that leads it is away."""


def raised(error: BaseException, doing: str, *, publishing: bool = False) -> CdcError:
    """Return what to raise for an error of pika's; with `publishing` the broker may mean a message that it was sent."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.ProbableAuthenticationError):
        return SinkRefused(f"RabbitMQ refused user or password while {doing}", "correct rabbitmq.url")
    if isinstance(error, exceptions.ProbableAccessDeniedError):
        return SinkRefused(f"RabbitMQ refused the virtual host while {doing}", REFUSED[NOT_ALLOWED])
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return _closed(error.reply_code, str(error.reply_text), doing, publishing=publishing)
    return Retriable(f"RabbitMQ is lost while {doing}: {_words(error)}")


def _closed(code: int, text: str, doing: str, *, publishing: bool) -> CdcError:
    said = f"RabbitMQ said {code} {text[:300]} while {doing}"
    if publishing and code in POISON:
        return Poisoned(said, why=f"{code} {text[:300]}")
    if code == PRECONDITION_FAILED:
        return SinkRefused(said, "it was made with other arguments: delete it, or name another one")
    if code in REFUSED and ABSENT not in text:
        return SinkRefused(said, REFUSED[code])
    return Retriable(said)


def _words(error: BaseException) -> str:
    """Return the innermost words of an error: pika wraps what the socket said several times."""
    attempts = getattr(error, "exceptions", ())  # AMQPConnectionWorkflowFailed: one for each address that was tried
    inner = attempts[-1] if attempts else getattr(error, "exception", None) or next(iter(error.args), None)
    if isinstance(inner, BaseException):
        return _words(inner)
    return f"{type(error).__name__}: {error}"[:300] if str(error) else type(error).__name__
