"""Waits for the catalogue's database and makes the tables that are not there yet.

The store does the same whenever a replica starts, one replica after the other. This runs before an upgrade's first
new replica, so that a database which cannot be reached or written stops the upgrade and not the service.
"""

import asyncio
import sys
import time

from serving.catalog.store import Store
from serving.config import Config
from serving.types import StoreError

PAUSE_S = 2.0


async def create(wait_s: float) -> None:
    """Raises SystemExit where there is no database, or none that answers within `wait_s`."""
    url = Config.load().catalog.database
    if url is None:
        raise SystemExit("no database: set LIGHT_ROUTER_CATALOG__DATABASE")
    until = time.monotonic() + wait_s
    while True:
        store = Store(url)
        try:
            await store.start()
        except StoreError as error:
            if time.monotonic() + PAUSE_S > until:
                raise SystemExit(f"gave up after {wait_s:g} s: {error}") from error
            print(f"waiting: {error}", flush=True)  # noqa: T201
        else:
            print("the tables are there", flush=True)  # noqa: T201
            return
        finally:
            await store.close()
        await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(create(float(sys.argv[1])))
