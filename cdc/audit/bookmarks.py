"""Bookmarks: places in the log that are kept, as copies of the slot, and the way back to one.

A bookmark's place is its own confirmed_flush_lsn, which is at or below the position. It keeps the log from there on, like any
slot, until it is dropped. Going back drops the slot and copies the bookmark in its place, under a hold: a standby would
otherwise take the new slot at once, skip to the old position, and confirm it. The position then begins at the bookmark, with a
raised generation, and remembers up to where what comes was published before (`replay_until`).

As the log from a bookmark on is whole, going back to one also mends a slot that was lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cdc.audit.check import look
from cdc.audit.diagnosis import strange
from cdc.audit.finding import Case
from cdc.audit.hold import Hold
from cdc.errors import ConfigurationError, ContinuityError
from cdc.pipeline.continuity import Evidence
from cdc.pipeline.ports import Sink
from cdc.position import Position
from cdc.postgres.bookmarks import Bookmark, bookmarks, prefix
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.server import Server
from cdc.postgres.slot import FAILOVER_SINCE, Administration

NAME = re.compile(r"[a-z0-9_]+")

SLOT_NAME_BYTES = 63
"""NAMEDATALEN - 1 of PostgreSQL."""


def named(slot: str, name: str) -> str:
    """Return the slot that keeps a bookmark; raises ConfigurationError for a name that no slot can have."""
    copy = prefix(slot) + name
    if NAME.fullmatch(name) is None or len(copy) > SLOT_NAME_BYTES:
        msg = f"{name!r} is no name for a bookmark of slot {slot!r}"
        raise ConfigurationError(msg, f"take lower-case letters, digits and _, at most {SLOT_NAME_BYTES - len(prefix(slot))}")
    return copy


def bookmark(administration: Administration, catalog: LiveCatalog, slot: str, name: str) -> Bookmark:
    """Keep the place where the slot is now; may be done while the pipeline runs."""
    copy = named(slot, name)
    for each in bookmarks(catalog, slot):
        if each.name == name:
            msg = f"bookmark {name!r} exists, at {each.lsn or 'a place whose log is gone'}"
            raise ConfigurationError(msg, f"take another name, or `cdc slot drop {name}`")
    if catalog.slot(slot) is None:
        msg = f"slot {slot!r} does not exist"
        raise ContinuityError(msg, "run `cdc init`, or `cdc recover` if it was there")
    administration.copy_slot(slot, copy)
    return chosen(catalog, slot, name)


def chosen(catalog: LiveCatalog, slot: str, name: str) -> Bookmark:
    """Return a bookmark; raises ContinuityError, with what can be reached, when there is none or its log is gone."""
    named(slot, name)
    listed = bookmarks(catalog, slot)
    found = next((each for each in listed if each.name == name), None)
    if found is not None and found.lsn is not None:
        return found
    reach = ", ".join(f"{each.name} at {each.lsn}" for each in listed if each.lsn is not None) or "no bookmark"
    what = f"there is no bookmark {name!r}" if found is None else f"the log of bookmark {name!r} is gone"
    msg = f"{what}; a slot cannot go back by itself. Within reach: {reach}"
    raise ContinuityError(msg, "go to one of these, or publish rows of the table again with `cdc replay`, or move a group: `cdc offsets`")


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a rewind needs of both ends."""

    case: Case
    admin_dsn: str
    publisher: Sink
    catalog: LiveCatalog
    say: Callable[[str], None]

    def planned(self, hold: Hold, name: str) -> tuple[Bookmark, Position]:
        """Return where it would go back to, and from where; changes nothing, and raises ContinuityError for what cannot be."""
        found = chosen(self.catalog, self.case.slot, name)
        peeked, cluster = self.publisher.peek()
        position = hold.allows(peeked)
        self._fits(found, position, cluster)
        return found, position

    def carried_out(self, hold: Hold, name: str) -> Position:
        """Do it; may be called again after a Retriable error, and begins anew then."""
        case = self.case
        administration = Administration(self.admin_dsn, case.dsn, case.application_name)
        try:
            held = hold.take(self.publisher, self.catalog, case.slot)
            found = chosen(self.catalog, case.slot, name)
            server = self._fits(found, held, held.kafka_cluster_id)
            failover = server.version >= FAILOVER_SINCE and (server.slot is None or bool(server.slot.failover))
            if server.slot is not None:
                administration.drop_slot(case.slot)
            place = administration.copy_slot(found.slot, case.slot)
            if failover:
                administration.set_failover(case.slot)
            until = max(held.end_lsn, held.replay_until or held.end_lsn)
            position = replace(held, generation=held.generation + 1, end_lsn=place, witness="none", replay_until=until)
            return hold.end(self.publisher, position)
        finally:
            administration.close()

    def _fits(self, found: Bookmark, position: Position, cluster: str) -> Server:
        """See that the log of the bookmark is the one that was published from."""
        case, server = self.case, look(self.case, self.catalog)
        foreign = strange(Evidence(case.pipeline, case.slot, server, cluster, position), position)
        if foreign is None and (server.publication is None or not server.publication.same(position.publication_fingerprint)):
            foreign = "the publication is not the one that was published from"
        if foreign is None and position.slot != case.slot:
            foreign = f"the position was made with slot {position.slot!r}, the settings name {case.slot!r}"
        if foreign is not None:
            msg = f"{foreign}; nothing was changed"
            raise ContinuityError(msg, "correct the settings, or `cdc recover` first")
        if found.lsn is not None and found.lsn > position.end_lsn:
            msg = f"bookmark {found.name!r} at {found.lsn} is ahead of the position {position.end_lsn}: that would skip rows"
            raise ContinuityError(msg, "take an older one: `cdc slot list`")
        return server
