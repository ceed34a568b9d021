"""The table `[topics]`: where records go, and how a topic is made."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from cdc.settings.base import Frozen
from cdc.settings.values import Placement, TopicName, TopicTemplate, Wrong, parse_placement


class CreateSettings(Frozen):
    """Table `create` in `[topics]`."""

    partitions: int = Field(ge=1, le=100_000, description="Partitions of an event topic; the position topic has one.", examples=[6])
    replication_factor: int = Field(default=3, ge=1, le=32_767, description="Copies of each partition.")
    min_insync_replicas: int = Field(
        default=2,
        ge=1,
        description="Copies that must have a record before it counts; never more than the copies there are.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fit(cls, data: Any) -> Any:  # noqa: ANN401 - whatever the file held
        if isinstance(data, dict) and "min_insync_replicas" not in data and str(data.get("replication_factor")) == "1":
            return {**data, "min_insync_replicas": 1}
        return data

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.min_insync_replicas > self.replication_factor:
            what = f"asks for {self.min_insync_replicas} copies in sync of {self.replication_factor}"
            raise Wrong(what, "set min_insync_replicas to replication_factor or less")
        return self


class TopicSettings(Frozen):
    """Table `[topics]`."""

    route: TopicTemplate = Field(
        default="outbox.event.{aggregatetype}",
        description="Topic of a row; placeholders are the keys of `outbox.columns` without payload and headers. A non-null "
        "topic column comes before it.",
    )
    position: TopicName = Field(description="Topic of the position records: one partition, compacted, of this pipeline alone.")
    dead_letter: TopicName = Field(description="Topic of the dead letters.")
    headers: Literal["cloudevents", "debezium"] = Field(
        default="cloudevents",
        description="Headers of a record: CloudEvents in binary mode, or those of Debezium's outbox router.",
    )
    placement: Placement | None = Field(
        default=None,
        description="More headers from the row, as Debezium's router writes them: `column:header`, or `column:header:name`, with "
        "commas between; a column, or a path into the payload.",
        examples=["type:header:eventType"],
    )
    value: Literal["avro", "json", "envelope"] = Field(
        default="avro",
        description='Value of a record: "avro" in Confluent\'s wire format, "json" for the validated text as it is, or "envelope" for that '
        "text inside a CloudEvents envelope in JSON.",
    )
    create: CreateSettings | None = None
    on_partition_change: Literal["warn", "stop"] = Field(
        default="warn",
        description="When a topic's number of partitions changes, keys move: warn, or stop the pipeline.",
    )

    @property
    def placed(self) -> dict[str, str]:
        """Headers that hold a column, by name."""
        return parse_placement(self.placement or "")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({self.route, self.position, self.dead_letter}) < 3:  # noqa: PLR2004 - three topics
            what = "names one topic for two purposes"
            raise Wrong(what, "give route, position and dead_letter different names")
        return self
