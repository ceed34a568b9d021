"""Which dead letters are meant, the place that a reason names, and what of a payload people see."""

from __future__ import annotations

import pytest

from cdc.audit.dead_letters import Choice, Letter, payload_text
from cdc.avro.masking import MASK
from cdc.avro.parse import parse
from cdc.avro.registry import Registry, SubjectSettings, Version
from cdc.cli.dead_letters import entry
from cdc.kafka.subscriber import Seen
from cdc.outbox.mapping import OutboxMapping

LETTER = Letter("e-1", "0" * 28, "schema", "Thing", "orders", "Thing/1 $: unknown field 'x'; $.lines[0].n: expected long", 1_000, 0, 7)
SCHEMA = {"type": "record", "name": "Thing", "fields": [{"name": "n", "type": "int"}, {"name": "email", "type": "string"}]}


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), True),
        (Choice(frozenset({"e-1", "e-2"})), True),
        (Choice(frozenset({"0" * 28})), True),
        (Choice(frozenset({"e-2"})), False),
        (Choice(reason="schema", topic="orders"), True),
        (Choice(reason="route"), False),
        (Choice(topic="others"), False),
        (Choice(since_ms=1_000, until_ms=1_001), True),
        (Choice(since_ms=1_001), False),
        (Choice(until_ms=1_000), False),
    ],
)
def test_a_choice_takes_what_fulfils_all_of_it(choice: Choice, *, taken: bool) -> None:
    assert choice.takes(LETTER) is taken


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (LETTER.message, "$.lines[0].n"),
        ("Thing/1 $: a record expected", "$"),
        ("Thing/1 $.a.b, expected long.", "$.a.b"),
        ("the table has no column 'type'", ""),
    ],
)
def test_the_path_is_the_first_place_inside_that_the_reason_names(message: str, path: str) -> None:
    assert LETTER._replace(message=message).path == path


def registry(*personal: str) -> Registry:
    version = Version("Thing", 1, 1, "", parse(SCHEMA, "Thing/1.avsc"), "Thing/1.avsc")
    return Registry("schemas", {"Thing": (version,)}, {"Thing": SubjectSettings(personal=personal)})


def seen(value: bytes | None, row: bytes | None = b'{"type": "Thing"}') -> Seen:
    headers: list[tuple[str, bytes | None]] = [("cdc.type", b"Thing"), *([("cdc.row", row)] if row else [])]
    return Seen("dead", 0, 7, b"k", value, headers, 1_000)


@pytest.mark.parametrize("row", [b'{"type": "Thing"}', None], ids=["whole", "too large to be kept"])
def test_personal_fields_of_a_payload_are_masked_and_what_its_schema_does_not_know(row: bytes | None) -> None:
    payload = seen(b'{"n":"x","email":"ada@example.com","emial":"ada@example.com"}', row)
    assert payload_text(payload, registry("email"), OutboxMapping()) == '{"n":"x","email":"***","emial":"***"}'
    assert payload_text(payload, registry(), OutboxMapping()) == payload.value.decode()  # type: ignore[union-attr]
    assert payload_text(payload, registry("email"), OutboxMapping(), unmasked=True) == payload.value.decode()  # type: ignore[union-attr]


def test_what_nobody_can_judge_is_hidden_whole() -> None:
    unknown = seen(b'{"email":"ada@example.com"}', b'{"type": "Unknown"}')
    assert payload_text(unknown, registry(), OutboxMapping()) == MASK
    assert payload_text(seen(b"x", b'{"type": null}'), registry(), OutboxMapping()) == MASK
    assert payload_text(seen(b"\xff\x00"), registry("email"), OutboxMapping()) == MASK
    assert payload_text(seen(b"\xff\x00"), registry("email"), OutboxMapping(), unmasked=True) == "\\xff\x00"
    assert payload_text(seen(None), registry("email"), OutboxMapping()) is None


def test_an_entry_of_the_list_fits_a_terminal() -> None:
    letter = LETTER._replace(id="0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f", message=f"{LETTER.message} and {'nothing else ' * 9}")
    first, second, *why = entry(letter, 80, words=True)
    assert first == "0189d3f4-7a0c-7b3e-9f1e-0a1b2c3d4e5f  schema, open"
    assert second == "  1970-01-01T00:00:01.000Z  Thing, meant for orders"
    assert " ".join(map(str.strip, why)) == letter.message.strip()
    assert all(len(line) <= 80 for line in why)
    assert entry(letter, 80, words=False)[2:] == ["  $.lines[0].n"], "a handler's words may quote data"
