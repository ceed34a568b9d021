"""Settings: file, environment and flags become frozen models, once, at the door.

`values` knows what a value may look like, `models` which settings there are, `sources` where they are written, and `loader`
puts them together.
"""

from cdc.settings.loader import load, load_schemas
from cdc.settings.models import (
    ColumnSettings,
    HttpSettings,
    Origin,
    OutboxSettings,
    PostgresSettings,
    SchemaSettings,
    Settings,
)
from cdc.settings.values import TOKEN_MIN_CHARS, Dsn, KafkaProperties, TableName, Token, is_loopback, is_secret, mask, template_parts

__all__ = [
    "TOKEN_MIN_CHARS",
    "ColumnSettings",
    "CreateSettings",
    "Dsn",
    "HttpSettings",
    "KafkaProperties",
    "Origin",
    "OutboxSettings",
    "PostgresSettings",
    "SchemaSettings",
    "Settings",
    "TableName",
    "Token",
    "TopicSettings",
    "is_loopback",
    "is_secret",
    "load",
    "load_schemas",
    "mask",
    "template_parts",
]
