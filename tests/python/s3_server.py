"""A small S3-compatible server: one bucket, addressed by path, with its objects as files of a directory.

It checks the signature of each request with botocore's own signer, and makes the faults that a test asks for by
`POST /-/fault`. `GET /-/state` shows what it has and what it was asked for.
"""

import hashlib
import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

BUCKET = "files"
REGION = "test-region-1"
KEY_ID = "TESTKEYID"
SECRET = "test/secret+key"
TOKEN = "test-session-token"
PIECE = 64 * 1024


class Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Store:
    """The objects, the faults that are still to be made, and the counts of requests."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.faults: list[dict] = []
        self.released = threading.Event()
        self.page = 1000
        self.requests: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.begun = 0
        os.makedirs(directory, exist_ok=True)

    def path(self, key: str) -> str:
        return os.path.join(self.directory, quote(key, safe=""))

    def keys(self) -> list[str]:
        return sorted(unquote(name) for name in os.listdir(self.directory) if not name.startswith("."))

    def fault(self, operation: str, kinds: tuple[str, ...]) -> dict | None:
        """Takes a fault of one of these kinds for an operation, if a test has asked for one."""
        with self.lock:
            for fault in self.faults:
                if fault["operation"] == operation and fault["kind"] in kinds:
                    fault["count"] -= 1
                    if fault["count"] == 0:
                        self.faults.remove(fault)
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store
    # Bytes of the request's body that are not read yet.
    left = 0

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET

    def answer(self) -> None:
        if self.path.startswith("/-/"):
            self.control()
            return
        self.left = int(self.headers.get("content-length", "0"))
        try:
            self.serve(self.operation())
        except Refused as why:
            self.store.refused[why.code] += 1
            text = f"<?xml version=\"1.0\"?><Error><Code>{why.code}</Code><Message>no</Message></Error>"
            # What was not read of the body would be taken for the next request.
            self.close_connection = True
            self.reply(why.status, text.encode(), "application/xml")
            # A connection that is closed with unread bytes may take the answer with it.
            while self.left > 0 and (piece := self.rfile.read(min(self.left, PIECE))):
                self.left -= len(piece)

    def operation(self) -> str:
        if self.command == "GET":
            return "list" if "list-type=2" in self.path else "get"
        return self.command.lower()

    def serve(self, operation: str) -> None:
        self.store.requests[operation] += 1
        if self.store.fault(operation, ("drop",)):
            self.close_connection = True
            self.connection.close()
            return
        self.check_signature()
        if fault := self.store.fault(operation, ("status",)):
            raise Refused(fault["status"], fault["code"])
        url = urlsplit(self.path)
        bucket, _, key = url.path.lstrip("/").partition("/")
        if bucket != BUCKET:
            raise Refused(404, "NoSuchBucket")
        if operation == "put":
            self.put(unquote(key))
        elif operation in ("get", "head"):
            self.get(unquote(key), operation)
        elif operation == "delete":
            self.check_payload(hashlib.sha256())
            if os.path.exists(path := self.store.path(unquote(key))):
                os.remove(path)
            self.reply(204, b"")
        elif operation == "list":
            self.check_payload(hashlib.sha256())
            self.list({name: values[0] for name, values in parse_qs(url.query).items()})
        else:
            raise Refused(405, "MethodNotAllowed")

    def put(self, key: str) -> None:
        if self.headers["content-length"] is None:
            raise Refused(411, "MissingContentLength")
        payload = hashlib.sha256()
        half = os.path.join(self.store.directory, f".{uuid.uuid4()}")
        self.store.begun += 1
        cut = self.left // 2 if self.store.fault("put", ("cut",)) else None
        with open(half, "wb") as file:
            while self.left > 0:
                piece = self.rfile.read(min(self.left, PIECE))
                self.left -= len(piece)
                payload.update(piece)
                file.write(piece)
                if not piece or (cut is not None and self.left < cut):
                    os.remove(half)
                    self.close_connection = True
                    return
        self.check_payload(payload)
        os.replace(half, self.store.path(key))
        if self.store.fault("put", ("hold",)):
            self.store.released.wait()
        self.reply(200, b"")

    def get(self, key: str, operation: str) -> None:
        self.check_payload(hashlib.sha256())
        try:
            with open(self.store.path(key), "rb") as file:
                body = file.read()
        except FileNotFoundError:
            raise Refused(404, "NoSuchKey") from None
        if self.store.fault(operation, ("cut",)):
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.reply(200, body, "binary/octet-stream")

    def list(self, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        after = query.get("start-after", "")
        found = [key for key in self.store.keys() if key.startswith(prefix) and key > after]
        size = min(int(query.get("max-keys", "1000")), self.store.page)
        page = found[:size]
        objects = "".join(f"<Contents><Key>{escape(key)}</Key><Size>0</Size></Contents>" for key in page)
        truncated = "true" if len(found) > len(page) else "false"
        text = (f"<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
                f"<IsTruncated>{truncated}</IsTruncated>{objects}</ListBucketResult>")
        self.reply(200, text.encode(), "application/xml")

    def check_signature(self) -> None:
        """Signs the request as botocore does, and compares."""
        given = self.headers.get("authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            raise Refused(403, "AccessDenied")
        parts = dict(part.strip().split("=", 1) for part in given.removeprefix("AWS4-HMAC-SHA256 ").split(","))
        scope = parts["Credential"].split("/")
        at = self.headers["x-amz-date"]
        if scope[0] != KEY_ID:
            raise Refused(403, "InvalidAccessKeyId")
        if scope[1:] != [at[:8], REGION, "s3", "aws4_request"]:
            raise Refused(400, "AuthorizationHeaderMalformed")
        time_of = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        if abs(datetime.now(timezone.utc) - time_of) > timedelta(minutes=15):
            raise Refused(403, "RequestTimeTooSkewed")
        signed = parts["SignedHeaders"].split(";")
        must = {"host"} | {name.lower() for name in self.headers if name.lower().startswith("x-amz-")}
        if not must <= set(signed):
            raise Refused(403, "AccessDenied")
        token = self.headers.get("x-amz-security-token")
        if token not in (None, TOKEN):
            raise Refused(403, "InvalidToken")
        request = AWSRequest(method=self.command, url=f"http://{self.headers['host']}{self.path}",
                             headers={name: self.headers[name] for name in signed})
        request.context["timestamp"] = at
        signer = S3SigV4Auth(Credentials(KEY_ID, SECRET, token), "s3", REGION)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        if signer.signature(text, request) != parts["Signature"]:
            raise Refused(403, "SignatureDoesNotMatch")

    def check_payload(self, payload: object) -> None:
        declared = self.headers["x-amz-content-sha256"]
        if declared not in ("UNSIGNED-PAYLOAD", payload.hexdigest()):
            raise Refused(400, "XAmzContentSHA256Mismatch")

    def control(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path == "/-/fault":
            with self.store.lock:
                self.store.faults.append({"count": 1, **json.loads(body)})
        elif self.path == "/-/page":
            self.store.page = json.loads(body)
        elif self.path == "/-/release":
            self.store.released.set()
        state = {"objects": self.store.keys(), "requests": self.store.requests, "refused": self.store.refused,
                 "begun": self.store.begun}
        self.reply(200, json.dumps(state).encode(), "application/json")

    def reply(self, status: int, body: bytes, kind: str | None = None) -> None:
        self.send_response(status)
        if kind:
            self.send_header("content-type", kind)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        # A node that is killed, or gives up, closes its connections.
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handle_error(request, client_address)


def main() -> None:
    directory, port = sys.argv[1], int(sys.argv[2])
    Handler.store = Store(directory)
    for _ in range(50):
        try:
            server = Server(("127.0.0.1", port), Handler)
            break
        except OSError:
            # The port of the server before this one.
            time.sleep(0.1)
    print(server.server_address[1], flush=True)
    server.serve_forever()


main()
