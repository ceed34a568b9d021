"""For the tests of those who use cdc: a bus in memory, real servers as pytest fixtures, and consumers that are killed."""
