"""A store with the part of S3's API that uploads use. It checks each body against its SHA-256, and injects faults."""

import collections
import contextlib
import hashlib
import hmac
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
import xml.sax.saxutils

import remote_servers

LEAST_PART = 5 << 20
KEYS = {"AWS_ACCESS_KEY_ID": "KeyOfTheTests", "AWS_SECRET_ACCESS_KEY": "SecretOfTheTests/+="}


def error(code):
    return f"<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()


def signature(method, path, headers, region, body=b""):
    """Returns the signature that a request must have by AWS's documentation (version 4), and the one that it has."""
    authorization = dict(part.strip().split("=", 1) for part in headers["Authorization"].removeprefix("AWS4-HMAC-SHA256").split(","))
    names = authorization["SignedHeaders"].split(";")
    given = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    place, _, query = path.partition("?")
    assert query.split("&") == sorted(query.split("&"))
    payload = hashlib.sha256(body).hexdigest()
    assert given["x-amz-content-sha256"] == payload and {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names)
    request = "\n".join([method, place, query, *(f"{name}:{given[name]}" for name in names), "", ";".join(names), payload])
    date = given["x-amz-date"]
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    assert authorization["Credential"] == f"{KEYS['AWS_ACCESS_KEY_ID']}/{scope}"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + KEYS["AWS_SECRET_ACCESS_KEY"].encode()
    for part in (date[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), authorization["Signature"]


class Handler(remote_servers.Handler):
    """Answers requests. Faults: a status; "reset" before the request has an effect, "lost" after it; "damaged" bytes;
    "stall"; "cut" answers; "error200" instead of the end of an upload; "gone" uploads; "redirect"."""

    def do_GET(self):
        self.serve()

    do_PUT = do_POST = do_DELETE = do_GET

    def serve(self):
        store = self.server
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.bucket, _, self.key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.what = self.name_request()
        with store.lock:
            store.requests.append((self.what, self.key, dict(self.headers)))
            if "bodies" in store.settings:
                store.settings["bodies"].append((self.what, self.command, self.path, dict(self.headers), body))
        fault = store.fault(self)
        if fault == "reset":
            return self.hang_up()
        if fault == "stall":
            time.sleep(store.settings.get("stall", 3))
            return self.hang_up()
        if fault == "redirect":
            return self.answer(307, Location=store.settings["other"] + self.path)
        if fault and fault.isdigit():
            return self.answer(int(fault), error("SlowDown"), **({"Retry_After": "0"} if fault == "429" else {}))
        if fault == "damaged":
            body = bytes(len(body)) + b"?"
        if fault == "gone":
            store.uploads.pop(self.query.get("uploadId"), None)
        if fault == "error200":
            return self.answer(200, error("InternalError"))
        code, answer, headers = self.act(body)
        if fault == "lost":
            return self.hang_up()
        if fault == "cut":
            answer = answer[:len(answer) // 2]
        return self.answer(code, answer, **headers)

    def name_request(self):
        if self.command == "POST":
            return "begin" if "uploads" in self.query else "complete"
        if self.command == "PUT":
            return "part" if "partNumber" in self.query else "put"
        if self.command == "DELETE":
            return "abort" if "uploadId" in self.query else "delete"
        return "list" if "list-type" in self.query else "uploads" if "uploads" in self.query else "get"

    def hang_up(self):
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()

    def act(self, body):
        """Executes the request. Returns the status, the body and the headers of the answer."""
        store = self.server
        if "Authorization" not in self.headers:
            return 403, error("AccessDenied"), {}
        if hashlib.sha256(body).hexdigest() != self.headers.get("x-amz-content-sha256"):
            return 400, error("XAmzContentSHA256Mismatch"), {}
        with store.lock:
            return getattr(self, "do_" + self.what)(body)

    def do_list(self, body):
        prefix = self.query["prefix"]
        objects = "".join(f"<Contents><Key>{xml.sax.saxutils.escape(key)}</Key><ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size></Contents>"
                          for key, (data, etag) in sorted(self.server.objects.items()) if key.startswith(prefix))
        return 200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>".encode(), {}

    def do_uploads(self, body):
        found = "".join(f"<Upload><Key>{xml.sax.saxutils.escape(key)}</Key><UploadId>{xml.sax.saxutils.escape(name)}</UploadId></Upload>"
                        for name, (key, _) in self.server.uploads.items() if key.startswith(self.query["prefix"]))
        return 200, f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{found}</ListMultipartUploadsResult>".encode(), {}

    def do_get(self, body):
        if self.key not in self.server.objects:
            return 404, error("NoSuchKey"), {}
        data, etag = self.server.objects[self.key]
        headers = {"ETag": f'"{etag}"'}
        if not data or "Range" not in self.headers:
            return 200, data, headers
        low, high = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        high = min(high, len(data) - 1)
        return 206, data[low:high + 1], headers | {"Content_Range": f"bytes {low}-{high}/{len(data)}"}

    def keep(self, data, etag):
        self.server.objects[self.key] = data, etag
        self.server.order.append(self.key)

    def do_put(self, body):
        etag = hashlib.md5(body).hexdigest()
        self.keep(body, etag)
        return 200, b"", {"ETag": f'"{etag}"'}

    def do_begin(self, body):
        name = f"upload/{len(self.server.begun)}+=&"
        self.server.begun.append(name)
        self.server.uploads[name] = (self.key, {})
        escaped = xml.sax.saxutils.escape(name)
        return 200, f"<InitiateMultipartUploadResult><UploadId>{escaped}</UploadId></InitiateMultipartUploadResult>".encode(), {}

    def do_part(self, body):
        key, parts = self.server.uploads.get(self.query["uploadId"], (None, None))
        if key != self.key:
            return 404, error("NoSuchUpload"), {}
        parts[int(self.query["partNumber"])] = body
        self.server.parts_taken += 1
        return 200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}

    def do_complete(self, body):
        key, parts = self.server.uploads.get(self.query["uploadId"], (None, None))
        if key != self.key:
            return 404, error("NoSuchUpload"), {}
        listed = re.findall(r"<Part><PartNumber>(\d+)</PartNumber><ETag>\"([0-9a-f]+)\"</ETag></Part>", body.decode())
        pieces = [parts.get(int(number), b"") for number, _ in listed]
        if [hashlib.md5(piece).hexdigest() for piece in pieces] != [etag for _, etag in listed]:
            return 400, error("InvalidPart"), {}
        if any(len(piece) < LEAST_PART for piece in pieces[:-1]):
            return 400, error("EntityTooSmall"), {}
        etag = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in pieces)).hexdigest() + f"-{len(pieces)}"
        self.keep(b"".join(pieces), etag)
        del self.server.uploads[self.query["uploadId"]]
        answer = f"<CompleteMultipartUploadResult><Key>k</Key><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        return 200, answer.encode(), {}

    def do_delete(self, body):
        self.server.objects.pop(self.key, None)
        self.server.order.append("-" + self.key)
        return 204, b"", {}

    def do_abort(self, body):
        found = self.server.uploads.pop(self.query["uploadId"], None)
        return (204, b"", {}) if found else (404, error("NoSuchUpload"), {})


class Store(remote_servers.Server):
    """Stores the objects of one bucket by key. `order`: the keys in the order of their appearance, "-KEY" for a removal.
    `requests` has (what, key, headers)."""

    def __init__(self, fault=None, **settings):
        super().__init__("/", Handler, fault, **settings)
        self.lock = threading.RLock()
        self.objects, self.uploads, self.order, self.begun = {}, {}, [], []
        self.parts_taken = 0

    def count(self):
        return collections.Counter(what for what, _, _ in self.requests)

    def environment(self, home):
        return {"AWS_ENDPOINT_URL": self.url, **KEYS, "AWS_SESSION_TOKEN": "TokenOfTheTests", "HOME": str(home)}

    def encrypt(self, certificate, key):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def difference(self, prefix, folder):
        """Returns the difference between the objects and the files of a folder; None without one."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".tessera" not in path.parts}
        objects = {key.removeprefix(prefix): data for key, (data, _) in self.objects.items() if key.startswith(prefix)}
        if files.keys() != objects.keys():
            return f"names: {sorted(files.keys() ^ objects.keys())}"
        return next((f"bytes of {name}" for name in files if files[name] != objects[name]), None)
