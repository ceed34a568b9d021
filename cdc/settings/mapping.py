"""From the settings to the mapping that both sides of the outbox go by."""

from __future__ import annotations

from cdc.outbox.mapping import OutboxMapping
from cdc.settings.models import Settings


def mapping(settings: Settings) -> OutboxMapping:
    """Return how rows become records."""
    return OutboxMapping(
        columns=settings.outbox.columns.named(),
        route=settings.topics.route,
        subject=settings.schemas.subject,
        source=settings.outbox.source,
        tombstones=settings.outbox.tombstones,
        payload=settings.outbox.payload,
        value=settings.topics.value,
        headers=settings.topics.headers,
        placed=settings.topics.placed,
        message_prefix=settings.outbox.message_prefix,
    )
