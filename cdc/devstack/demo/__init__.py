"""The demo's parts: a shop that writes, a pipeline to kill, a watcher that reads."""
