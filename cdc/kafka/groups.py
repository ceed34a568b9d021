"""Consumer groups: where they are, and moved to another place while nobody reads in their name.

The broker refuses to move a group that has members; we look first, so that the refusal can name how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition

from cdc.errors import KafkaRefused
from cdc.kafka.client import REQUEST_TIMEOUT_S, Waiting
from cdc.kafka.topics import Topics, at_time

Place = tuple[str, int]

NO_OFFSET = -1001
"""librdkafka's OFFSET_INVALID: the group has none for this partition."""

QUIET = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD, ConsumerGroupState.UNKNOWN)


class Groups(Topics):
    """The administrative client, for groups as well."""

    def offsets_of(self, group: str, waiting: Waiting) -> dict[Place, int]:
        """Return the committed offsets of a group, by partition."""
        request = ConsumerGroupTopicPartitions(group)
        futures = self._client().list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
        answer = self._answer(self._ask(futures[group]), waiting, f"reading the offsets of group {group!r}")
        return {(place.topic, place.partition): place.offset for place in answer.topic_partitions or () if place.offset != NO_OFFSET}

    def members(self, group: str, waiting: Waiting) -> int:
        """Return how many consumers read in the group's name now."""
        futures = self._client().describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)
        found = self._answer(self._ask(futures[group]), waiting, f"describing group {group!r}")
        return len(found.members) if found.state not in QUIET else 0

    def since(self, places: Sequence[Place], time_ms: int, waiting: Waiting) -> list[int]:
        """Return the first offset of this time or later, -1 where no record has reached it."""
        return self.offsets({TopicPartition(*place): at_time(time_ms) for place in places}, IsolationLevel.READ_COMMITTED, waiting)

    def move(self, group: str, offsets: Mapping[Place, int], waiting: Waiting) -> None:
        """Set the offsets of a group; raises KafkaRefused while it is in use, or when we may not."""
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, places)
        futures = self._client().alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
        moved: Sequence[TopicPartition] = self._answer(self._ask(futures[group]), waiting, f"moving group {group!r}").topic_partitions
        refused = [place for place in moved if place.error is not None]
        if refused:
            msg = f"{len(refused)} partitions of group {group!r} were not moved: {refused[0].topic} [{refused[0].partition}]"
            raise KafkaRefused(f"{msg}: {refused[0].error}", "stop its consumers, and grant READ on the group and the topics")
