"""What `cdc --version` shows: our version and those of the libraries that a bug report has to name."""

import platform
from collections.abc import Iterator
from importlib import import_module, metadata


def versions() -> dict[str, str]:
    """Name to version; the two C libraries come inside wheels and have versions of their own."""
    return {
        "cdc": _distribution("cdc"),
        "python": platform.python_version(),
        "confluent-kafka": _distribution("confluent-kafka"),
        "librdkafka": str(import_module("confluent_kafka").libversion()[0]),
        "psycopg": _distribution("psycopg"),
        "libpq": _libpq(int(import_module("psycopg.pq").version())),
        "fastavro": _distribution("fastavro"),
    }


def lines() -> Iterator[str]:
    """Yield the versions for people."""
    for name, version in versions().items():
        yield f"{name} {version}"


def _distribution(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _libpq(number: int) -> str:
    return f"{number // 10000}.{number % 10000}"
