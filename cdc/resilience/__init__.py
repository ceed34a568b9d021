"""Waiting and giving up, as values: no clock and no randomness of its own."""
