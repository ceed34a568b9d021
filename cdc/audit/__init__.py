"""Reads both ends and judges: the invariants, verify."""
