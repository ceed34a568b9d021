"""A real PostgreSQL and a real Kafka from pip packages, for the demo, for development and for tests."""
