"""One service of the shop as a process: `python -m cdc.devstack.demo.shop SERVICE PLACE.json`."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path

from cdc.devstack.demo.shop.place import Place

CONSUMERS = ("inventory", "warehouse", "saga", "notification", "analytics")
"""Services that consume; each is made by the function of its name in the module of its name."""

API = "api"


def main(service: str, file: Path) -> None:
    """Run a service until SIGTERM."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    place = Place.read(file)
    if service == API:
        import uvicorn  # noqa: PLC0415 - the only service that needs it

        from cdc.devstack.demo.shop.api import Api  # noqa: PLC0415 - the same

        uvicorn.run(Api(place).app(), host="127.0.0.1", port=place.port, log_level="warning", ws="websockets-sansio")
    else:
        getattr(import_module(f"cdc.devstack.demo.shop.{service}"), service)(place).run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
