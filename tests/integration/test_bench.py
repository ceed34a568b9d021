"""Every peer of the bench drains a small backlog for real, and publishes each row once."""

from __future__ import annotations

import pytest

from benchmarks.versus import LARGE_PEERS, Backlog, versus


@pytest.mark.soak
@pytest.mark.servers
@pytest.mark.timeout(1800)
def test_every_peer_publishes_the_backlog() -> None:
    rows = 20_000
    found = versus(Backlog(rows, 100, LARGE_PEERS), 1)
    for peer in LARGE_PEERS:
        [turn] = found["by_round"][peer.name]
        assert turn, f"{peer.name} failed"
        assert turn["published"] == (rows if peer.publishes else None)
        assert (turn["rss_mb"] or 0) > 0
        assert (turn["cpu_s_per_million"] or 0) > 0
