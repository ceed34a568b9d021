"""The registry's answers, one by one, and a copy of a folder into another registry."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cdc.avro import confluent, folder
from cdc.avro.endpoint import MAX_BODY_BYTES, application
from cdc.avro.push import push
from cdc.avro.registry import Registry
from cdc.avro.schema import Json
from cdc.errors import AuditFailed, ConfigurationError

ONE = {"type": "record", "name": "A", "namespace": "x", "fields": [{"name": "a", "type": "int"}]}
TWO = {**ONE, "fields": [*ONE["fields"], {"name": "b", "type": "int", "default": 0}]}
OTHER = {"type": "record", "name": "B", "namespace": "x", "fields": [{"name": "b", "type": "string"}]}
WIDER = {**TWO, "fields": [*TWO["fields"], {"name": "c", "type": "int", "default": 0}]}
WRONG = {**ONE, "fields": [{"name": "z", "type": "int"}]}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    for name, schema in (("A/1", ONE), ("A/2", TWO), ("B/1", OTHER)):
        file = tmp_path / f"{name}.avsc"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(schema))
    (tmp_path / "registry.toml").write_text('[subjects.A]\ntopic = "t"\ncompatibility = "FULL"\n[subjects.B]\ntopic = "t"\n')
    contents = folder.scan(tmp_path)
    folder.write_lock(tmp_path, contents.lock.added((f.subject, f.number, f.fingerprint) for f in contents.unlocked))
    return folder.load(tmp_path)


def ask(registry: Registry, method: str, path: str, schema: Json = None, **query: str) -> tuple[int, Json]:
    body = b"" if schema is None else json.dumps({"schema": json.dumps(schema)}).encode()
    answer = confluent.answer(registry, method, path, query, body)
    return answer.status, json.loads(answer.body)


GET = {
    "/": {},
    "/schemas/types": ["AVRO"],
    "/schemas/ids/2/schema": {**TWO, "name": "x.A"},
    "/schemas/ids/2/versions": [{"subject": "A", "version": 2}],
    "/schemas/ids/2/subjects": ["A"],
    "/subjects": ["A", "B"],
    "/subjects/A/versions": [1, 2],
    "/subjects/A/versions/": [1, 2],
    "/subjects/%41/versions": [1, 2],
    "/subjects/:.:A/versions": [1, 2],
    "/subjects/x.A/versions": [1, 2],
    "/subjects/t-value/versions": [1, 2, 3],
    "/subjects/t-x.B/versions": [1],
    "/subjects/A/versions/1/referencedby": [],
    "/config": {"compatibilityLevel": "BACKWARD_TRANSITIVE"},
    "/config/A": {"compatibilityLevel": "FULL"},
    "/mode": {"mode": "READONLY"},
    "/mode/A": {"mode": "READONLY"},
    "/contexts": ["."],
}


@pytest.mark.parametrize("path", GET)
def test_a_question_and_its_answer(registry: Registry, path: str) -> None:
    status, document = ask(registry, "GET", path)
    if path == "/schemas/ids/2/schema":
        document.pop("namespace", None)
        expected = {k: v for k, v in {**TWO, "name": "x.A"}.items() if k != "namespace"}
        assert (status, document) == (200, expected)
    else:
        assert (status, document) == (200, GET[path])


@pytest.mark.parametrize(
    ("method", "path", "schema", "code"),
    [
        ("GET", "/schemas/ids/99", None, 40403),
        ("GET", "/schemas/ids/99/versions", None, 40403),
        ("GET", "/schemas/guids/0", None, 40403),
        ("GET", "/subjects/Z/versions", None, 40401),
        ("GET", "/subjects/Z/versions/1", None, 40401),
        ("GET", "/subjects/A/versions/3", None, 40402),
        ("GET", "/subjects/A/versions/x", None, 42202),
        ("GET", "/config/Z", None, 40401),
        ("POST", "/subjects/A", OTHER, 40403),
        ("POST", "/subjects/Z", ONE, 40401),
        ("POST", "/subjects/A", {"type": "nonsense"}, 42201),
        ("POST", "/subjects/A/versions", {"type": "nonsense"}, 42201),
        ("POST", "/subjects/A/versions", WIDER, 42205),
        ("POST", "/subjects/A/versions", WRONG, 40901),
        ("POST", "/subjects/Z/versions", WIDER, 42205),
        ("POST", "/compatibility/subjects/Z/versions/1", ONE, 40401),
        ("POST", "/compatibility/subjects/A/versions/9", ONE, 40402),
        ("POST", "/compatibility/subjects/A/versions/1", None, 42201),
        ("PUT", "/config", None, 42205),
        ("PUT", "/mode/A", None, 42205),
        ("DELETE", "/subjects/A/versions", None, 42205),
        ("GET", "/associations/resources/-/t", None, 404),
        ("GET", "/nowhere", None, 404),
        ("PUT", "/nowhere", None, 404),
        ("GET", "/schemas/ids/x", None, 404),
        ("PATCH", "/subjects", None, 404),
    ],
)
def test_an_error_has_the_fields_code(registry: Registry, method: str, path: str, schema: Json, code: int) -> None:
    status, document = ask(registry, method, path, schema)
    assert document["error_code"] == code
    assert status == int(str(code)[:3])
    assert document["message"]


def test_versions_are_described(registry: Registry) -> None:
    version = registry.version("A", 2)
    described = {"subject": "A", "version": 2, "id": 2, "guid": str(version.guid), "schema": version.text}
    for path in ("/subjects/A/versions/2", "/subjects/A/versions/latest", "/subjects/A/versions/-1"):
        assert ask(registry, "GET", path) == (200, described)
    assert ask(registry, "POST", "/subjects/A", TWO) == (200, described)
    assert ask(registry, "POST", "/subjects/A/versions", TWO)[1]["id"] == 2
    assert ask(registry, "POST", "/subjects/unheard-value", TWO)[1]["id"] == 2
    assert ask(registry, "POST", "/subjects/unheard-value/versions", TWO)[1]["id"] == 2
    assert ask(registry, "GET", "/schemas/ids/2") == (200, {"schema": version.text, "guid": str(version.guid), "id": 2})
    assert ask(registry, "GET", f"/schemas/guids/{version.guid}")[1]["id"] == 2
    assert ask(registry, "GET", "/schemas", latestOnly="true", subjectPrefix="A") == (200, [described])
    assert ask(registry, "GET", "/subjects", subjectPrefix="B") == (200, ["B"])
    assert ask(registry, "GET", "/subjects/A/versions/1/schema")[1]["fields"] == ONE["fields"]
    assert ask(registry, "GET", "/subjects/t-value/versions/latest")[1]["id"] == 3


def test_compatibility_is_judged_by_the_subjects_mode(registry: Registry) -> None:
    good = ask(registry, "POST", "/compatibility/subjects/A/versions/latest", WIDER)
    assert good == (200, {"is_compatible": True})
    status, bad = ask(registry, "POST", "/compatibility/subjects/A/versions", WRONG, verbose="true")
    assert (status, bad["is_compatible"]) == (200, False)
    assert any("field 'z' was not written" in message for message in bad["messages"])
    assert ask(registry, "POST", "/compatibility/subjects/A/versions/latest", WIDER, verbose="true")[1]["messages"] == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"schema": 1}', b'{"schema": "{"}', b'{"schemaType": "JSON", "schema": "{}"}', b"\xff"]
)
def test_a_body_that_is_none_is_an_invalid_schema(registry: Registry, body: bytes) -> None:
    answer = confluent.answer(registry, "POST", "/subjects/A", {}, body)
    assert (answer.status, json.loads(answer.body)["error_code"]) == (422, 42201)


def call(registry: Registry, method: str, path: str, chunks: list[bytes], root: str = "") -> tuple[int, bytes, dict[bytes, bytes]]:
    sent: list[dict[str, Json]] = []
    waiting = [{"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1} for i, chunk in enumerate(chunks)]

    async def receive() -> dict[str, Json]:
        return waiting.pop(0)

    async def send(message: Json) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": root, "query_string": b"verbose=true"}
    asyncio.run(application(lambda: registry, "/registry")(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


def test_the_application_serves_below_any_prefix(registry: Registry) -> None:
    for path, root in (("/subjects", ""), ("/registry/subjects", ""), ("/registry/subjects", "/registry"), ("/x/subjects", "/x")):
        status, body, headers = call(registry, "GET", path, [b""], root)
        assert (status, json.loads(body)) == (200, ["A", "B"])
        assert headers[b"content-type"] == b"application/vnd.schemaregistry.v1+json"
    assert call(registry, "GET", "/registry", [b""])[:2] == (200, b"{}")
    status, body, headers = call(registry, "HEAD", "/subjects", [b""])
    assert (status, body, headers[b"content-length"]) == (200, b"", b"9")
    chunk = json.dumps({"schema": json.dumps(TWO)}).encode()
    assert call(registry, "POST", "/subjects/A", [chunk[:10], chunk[10:]])[0] == 200
    assert call(registry, "POST", "/subjects/A", [b"x" * MAX_BODY_BYTES, b"x"])[0] == 413


class Remote(BaseHTTPRequestHandler):
    """Another registry, as far as a push sees it."""

    versions: dict[str, Json]
    modes: dict[str, str]
    log: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, document: Json) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        found = self.versions.get(self.path)
        self.reply(*((200, found) if found else (404, {"error_code": 40401, "message": "no"})))

    def body(self) -> Json:
        return json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")

    def do_PUT(self) -> None:
        self.modes[self.path.removeprefix("/mode/")] = self.body()["mode"]
        self.log.append(self.headers.get("authorization", ""))
        self.reply(200, {})

    def do_DELETE(self) -> None:
        self.modes.pop(self.path.removeprefix("/mode/"))
        self.reply(200, {})

    def do_POST(self) -> None:
        body = self.body()
        subject = self.path.split("/")[2]
        if self.modes.get(subject) != "IMPORT":
            self.reply(422, {"error_code": 42205, "message": "not in import mode"})
            return
        self.versions[f"{self.path}/{body['version']}"] = body
        self.reply(200, {"id": body["id"]})


@pytest.fixture
def remote() -> Iterator[str]:
    Remote.versions, Remote.modes, Remote.log = {}, {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Remote)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_push_keeps_ids_and_can_be_repeated(registry: Registry, remote: str) -> None:
    pushed = push(registry, f"http://user:secret%40@{remote}")
    assert pushed.copied == ("A/1", "A/2", "B/1")
    assert [v["id"] for v in Remote.versions.values()] == [1, 2, 3]
    assert Remote.modes == {}
    assert Remote.log[0].startswith("Basic ")
    assert push(registry, f"http://{remote}/").present == ("A/1", "A/2", "B/1")
    Remote.versions["/subjects/B/versions/1"]["schema"] = json.dumps(ONE)
    with pytest.raises(AuditFailed, match="B/1 is another schema there"):
        push(registry, f"http://{remote}")


def test_a_push_to_nowhere_says_so(registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="no URL"):
        push(registry, "nowhere")
    with pytest.raises(ConfigurationError) as caught:
        push(registry, "http://user:canary@127.0.0.1:1")
    assert "canary" not in str(caught.value)
