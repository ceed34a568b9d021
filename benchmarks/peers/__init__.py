"""Who is measured, and how each is brought to drain the same backlog: one file for each kind."""
