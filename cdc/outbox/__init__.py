"""Room 2: from rows to events."""
