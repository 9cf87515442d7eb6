"""Servers for the tests of remote sources: nginx, and one in Python that injects faults and follows the API of the Hub."""

import contextlib
import hashlib
import html
import importlib.util
import http.server
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import harness

NGINX = """daemon off; {user} pid {work}/pid; error_log {work}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log {work}/access.log; client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
    uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5; default_type application/octet-stream;
    server {{ listen 127.0.0.1:{port} {ssl}; root {root}; autoindex on; sendfile on; {more} }}
}}
"""

APACHE = """ServerRoot {work}
PidFile {work}/pid
ErrorLog {work}/error.log
Listen 127.0.0.1:{port}
ServerName 127.0.0.1
{user}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule autoindex_module {modules}/mod_autoindex.so
LoadModule dir_module {modules}/mod_dir.so
LoadModule mime_module {modules}/mod_mime.so
TypesConfig /etc/mime.types
DocumentRoot {root}
<Directory {root}>
    Require all granted
    Options +Indexes
    IndexOptions {options}
</Directory>
"""
APACHE_MODULES = pathlib.Path("/usr/lib/apache2/modules")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")


def find_nginx():
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def nginx(root, work, certificate=None, more=""):
    """Serves a folder and yields the address. `certificate` is (certificate, key) for https."""
    work.mkdir()
    port = free_port()
    ssl = "ssl" if certificate else ""
    if certificate:
        more += f"ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]};"
    (work / "conf").write_text(NGINX.format(user="user root;" if os.getuid() == 0 else "", work=work, port=port, root=root, ssl=ssl, more=more))
    with subprocess.Popen([find_nginx(), "-c", work / "conf", "-p", work], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield f"{'https://localhost' if ssl else 'http://127.0.0.1'}:{port}"
        finally:
            process.terminate()


def find_apache():
    found = shutil.which("apache2") or shutil.which("apache2", path="/usr/sbin")
    return found if found and (APACHE_MODULES / "mod_autoindex.so").exists() else None


@contextlib.contextmanager
def apache(models, options):
    """Serves a copy of a folder and yields the address. Apache changes its user if started by root, so all users can read
    the copy."""
    with tempfile.TemporaryDirectory() as name:
        work, port = pathlib.Path(name), free_port()
        shutil.copytree(models, work / "root")
        for path in (work, *work.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        user = "User nobody\nGroup nogroup" if os.getuid() == 0 else ""
        (work / "conf").write_text(APACHE.format(work=work, port=port, user=user, modules=APACHE_MODULES, root=work / "root", options=options))
        with subprocess.Popen([find_apache(), "-f", work / "conf", "-D", "FOREGROUND"], stderr=subprocess.DEVNULL) as process:
            try:
                wait_for(port)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder with ranges and ETags. `fault(handler)` returns the fault of a request, or None; `requests` has
    (method, path, headers) of all requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, root, handler=None, fault=None, **settings):
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.root = pathlib.Path(root)
        self.fault = fault or (lambda handler: None)
        self.requests = []
        self.settings = settings

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Ignores a client that breaks a connection."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *why):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *words):
        """Logs nothing."""

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        self.route(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path))

    def route(self, path):
        place = self.server.root / path.lstrip("/")
        if place.is_dir():
            names = sorted(entry.name + "/" * entry.is_dir() for entry in place.iterdir())
            links = "".join(f'<a href="{html.escape(urllib.parse.quote(name))}">{html.escape(name)}</a>\n' for name in ["../", *names])
            self.answer(200, f"<html><body><h1>Index of {path}</h1>{links}</body></html>".encode(), Content_Type="text/html")
        elif place.is_file():
            self.send_file(place)
        else:
            self.answer(404, b"<h1>Not Found</h1>")

    def etag(self, place):
        status = place.stat()
        return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'

    def send_file(self, place):
        """Sends a range of the file, with the fault of this request."""
        size, etag, fault = place.stat().st_size, self.etag(place), self.server.fault(self)
        wanted = self.headers.get("Range")
        if fault in ("429", "503", "500"):
            return self.answer(int(fault), b"busy", **({"Retry_After": self.server.settings.get("wait", "0")} if fault != "500" else {}))
        if self.headers.get("If-Match", etag) != etag:
            return self.answer(412)
        first, last = 0, size - 1
        if wanted and fault != "whole":
            low, high = wanted.removeprefix("bytes=").split("-")
            first, last = int(low), min(int(high), size - 1)
            if first >= size:
                return self.answer(416, Content_Range=f"bytes */{size}")
        with open(place, "rb") as file:
            file.seek(first)
            body = file.read(last - first + 1)
        if fault == "range" and wanted:  # other bytes, with a head that says so
            first, last, body = first + 1, last + 1, body[1:] + b"x"
        if fault == "etag":
            etag, body = '"changed"', bytes(len(body))
        self.send_response(206 if wanted and fault != "whole" else 200)
        self.send_header("ETag", etag)
        if wanted and fault != "whole":
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send_body(body, fault)

    def send_body(self, body, fault):
        if fault not in ("cut", "reset", "stall"):
            self.wfile.write(body)
            return
        self.wfile.write(body[:len(body) // 2])
        self.wfile.flush()
        if fault == "stall":
            time.sleep(4)
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR) if fault != "reset" else self.connection.close()


class Blobs(Handler):
    """Is the server to which the Hub redirects: large files by their digest, while the signature in the query is valid."""

    def route(self, path):
        hub = self.server.settings["hub"]
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if int(query["Signature"][0]) < hub.signature:
            return self.answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        return self.send_file(hub.blobs[path.rpartition("/")[2]])

    def etag(self, place):
        return f'"blob-{place.stat().st_size}"'


class HubHandler(Handler):
    """Answers /api/models and /resolve as the Hub does."""

    def route(self, path):
        hub, parts = self.server, path.strip("/").split("/")
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401, b"Invalid username or password.", X_Error_Message="Invalid credentials in Authorization header")
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            return self.model("/".join(parts[2:4]), "/".join(parts[5:]))
        if parts[2:3] == ["resolve"] and parts[3] == hub.commit:
            return self.file("/".join(parts[:2]), "/".join(parts[4:]))
        return self.answer(404, b"Entry not found", X_Error_Message="Entry not found")

    def model(self, name, revision):
        hub = self.server
        if revision not in ("main", "refs/pr/1", hub.commit) or not (hub.root / name).is_dir():
            return self.answer(404, b"{}", X_Error_Message="Repository or revision not found")
        siblings = []
        for path in sorted(p for p in (hub.root / name).rglob("*") if p.is_file()):
            entry = {"rfilename": str(path.relative_to(hub.root / name)), "size": path.stat().st_size, "blobId": hub.digest(path, "sha1")}
            if hub.is_large(path):
                entry["lfs"] = {"sha256": hub.digest(path, "sha256"), "size": entry["size"], "pointerSize": 134}
            siblings.append(entry)
        answer = {"_id": "1", "id": name, "sha": hub.commit, "private": False, "siblings": siblings, "tags": []}
        return self.answer(200, json.dumps(answer).encode(), Content_Type="application/json", X_Repo_Commit=hub.commit)

    def file(self, name, file):
        hub, place = self.server, self.server.root / name / file
        if not place.is_file():
            return self.answer(404, b"Entry not found", X_Error_Message="Entry not found")
        if not hub.is_large(place):
            return self.send_file(place)
        digest = hub.digest(place, "sha256")
        hub.blobs[digest] = place
        return self.answer(302, b"Found", Location=f"{hub.cdn.url}/repos/{digest}?Signature={hub.signature}&X-Secret=secret-of-the-query",
                           X_Repo_Commit=hub.answered_commit or hub.commit, X_Linked_Size=str(place.stat().st_size), X_Linked_ETag=f'"{digest}"')

    def etag(self, place):
        return f'"{self.server.digest(place, "sha1")}"'


class Hub(Server):
    """Is a Hub with the models of a folder ORG/NAME, and the server of their large files on another port."""

    def __init__(self, root, token=None):
        super().__init__(root, HubHandler)
        self.commit, self.answered_commit = "0123456789abcdef" * 2 + "01234567", None
        self.token, self.signature, self.blobs = token, 1, {}
        self.cdn = Server(root, Blobs, hub=self)

    def is_large(self, path):
        return path.suffix == ".safetensors"

    def digest(self, path, kind):
        data = path.read_bytes()
        return hashlib.sha256(data).hexdigest() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def __enter__(self):
        self.cdn.__enter__()
        return super().__enter__()

    def __exit__(self, *why):
        super().__exit__(*why)
        self.cdn.__exit__(*why)


def has_moto():
    return importlib.util.find_spec("moto") is not None and importlib.util.find_spec("flask") is not None


@contextlib.contextmanager
def s3(work):
    """Starts an empty S3 of moto and yields the address."""
    port = free_port()
    with open(work, "wb") as log, subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                                                   env=dict(os.environ, MOTO_S3_DEFAULT_MAX_KEYS="10"), stdout=log, stderr=log) as process:
        try:
            wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def upload(url, bucket, prefix, folder):
    """Creates a bucket and uploads the files of a folder."""
    def put(path, data=b""):
        request = urllib.request.Request(f"{url}/{urllib.parse.quote(path)}", data=data, method="PUT",
                                         headers={"Content-Type": "application/octet-stream", "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"})
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()

    put(bucket)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        put(f"{bucket}/{prefix}{path.relative_to(folder)}", path.read_bytes())


def outputs_differ(local, remote, address):
    """Returns the difference between the outputs of a remote and a local source; None if only the manifest's address
    differs."""
    for folder in (local, remote):
        shutil.rmtree(folder / ".tessera", ignore_errors=True)
        for path in folder.rglob("tessera.manifest.json"):
            manifest = json.loads(path.read_text())
            manifest.pop("manifest_xxh128", None)
            for source in manifest["sources"]:
                if not source.pop("address", "").startswith(address if folder == remote else ""):
                    return f"{path}: its address"
                source.pop("commit", None)
                for file in source["files"]:
                    if folder == remote and file.pop("etag", None) is None and file["bytes"]:
                        return f"{path}: no ETag of {file}"
            path.write_text(json.dumps(manifest))
    return harness.tree_difference(local, remote)
