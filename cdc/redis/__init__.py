"""Redis Streams in place of Kafka: one script for each commit, fenced inside of Redis, and a reader of what was committed."""
