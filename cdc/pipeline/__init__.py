"""The hallway: leads from room to room, and decides when."""
