"""Room 1: from the write-ahead log to the rows of whole transactions."""
