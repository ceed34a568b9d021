"""Consumers that apply each event once."""

from cdc.consumer.app import Consumer
from cdc.consumer.event import Event
from cdc.consumer.retry import Retry, TryAgain, Unprocessable
from cdc.kafka.topics import Create

__all__ = ["Consumer", "Create", "Event", "Retry", "TryAgain", "Unprocessable"]
