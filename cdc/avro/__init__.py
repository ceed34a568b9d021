"""ROOM 3: from events to bytes. The schema folder as a registry, strict compiled encoders, and what serves them to clients."""
