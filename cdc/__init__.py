"""From a PostgreSQL outbox table to Kafka, each committed row exactly once."""
