"""What can be seen of the pipeline: metrics, health, logs, and the HTTP endpoint that shows them."""
