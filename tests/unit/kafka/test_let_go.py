"""A client is let go only when nothing of it is under way: destroyed in its own thread, librdkafka would abort the process.

Whoever keeps an error keeps the frames that it passed through, and with them the client that could not answer; when the error
is garbage in a cycle, Python may collect it in any thread, also in the one in which a request of that client just ended.
"""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, threading, time
from confluent_kafka.admin import AdminClient
from cdc.errors import Retriable
from cdc.kafka import topics
from cdc.resilience.call import nobody_waits
from cdc.kafka.properties import admin_properties

topics.REQUEST_TIMEOUT_S = 4.0
gc.disable()
collected = threading.Event()
answered = AdminClient._make_resource_result

def collecting(future, answers):
    gc.collect()  # as Python may, in the client's own thread, whenever it likes
    collected.set()
    answered(future, answers)

AdminClient._make_resource_result = staticmethod(collecting)

def ask():
    asked = topics.Topics(admin_properties({"bootstrap.servers": "127.0.0.1:1"}, "letgo"))
    try:
        asked.describe(["some"], nobody_waits)
    except Retriable as error:
        error.kept = [error]

ask()
print("alive", collected.wait(20))
"""


def test_an_error_that_is_kept_does_not_abort_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "alive True"), done.stderr[-500:]
