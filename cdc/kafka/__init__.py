"""Room 4: from bytes to a committed Kafka transaction, and back to readers."""
