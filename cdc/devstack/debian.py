"""Servers from Debian's packages: installed on this machine, or unpacked into the cache beside the other servers."""

from __future__ import annotations

import shutil
from pathlib import Path

from cdc.devstack.jars import cache_dir
from cdc.devstack.rabbitmq import RabbitBroker
from cdc.devstack.redis import RedisServer
from cdc.errors import ConfigurationError


def redis_server() -> RedisServer:
    """Return a Redis that is not started yet; raises ConfigurationError where it is not installed."""
    for unpacked in _places("redis-server"):
        own = unpacked / "usr" / "bin" / "redis-server"
        if own.exists():
            return RedisServer(program=own, libraries=sorted({each.parent for each in unpacked.glob("usr/lib/*-linux-*/*.so*")}))
    found = shutil.which("redis-server")
    if found is None:
        raise _missing("redis-server")
    return RedisServer(program=Path(found))


def rabbit_broker() -> RabbitBroker:
    """Return a RabbitMQ that is not started yet; raises ConfigurationError where it is not installed."""
    for root in _places("rabbitmq-server"):
        if any((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")) and (root / "usr/lib/erlang").is_dir():
            return RabbitBroker(root)
    raise _missing("rabbitmq-server")


def _places(package: str) -> list[Path]:
    """Return where a package may lie: unpacked, or installed."""
    return [cache_dir() / "debian" / package, Path("/")]


def _missing(package: str) -> ConfigurationError:
    what = f"there is no {package} on this machine"
    return ConfigurationError(what, f"apt-get install {package}, or in a checkout: .venv/bin/python -m tests.packages")
