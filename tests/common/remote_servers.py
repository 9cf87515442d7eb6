"""Servers for the tests of remote sources: nginx, and one in Python that injects faults and follows the API of the Hub."""

import contextlib
import html
import http.server
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.parse

NGINX = """daemon off; {user} pid {work}/pid; error_log {work}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log {work}/access.log; client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
    uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5; default_type application/octet-stream;
    server {{ listen 127.0.0.1:{port} {ssl}; root {root}; autoindex on; sendfile on; {more} }}
}}
"""


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
    """Serves a folder: the address. `certificate` is (certificate, key) for https."""
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
        """A client that breaks a connection is no error of the server."""

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
        """Nothing is logged."""

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
        """A range of the file, with the fault of this request."""
        size, etag, fault = place.stat().st_size, self.etag(place), self.server.fault(self)
        wanted = self.headers.get("Range")
        if fault in ("429", "503", "500"):
            return self.answer(int(fault), b"busy", **({"Retry_After": "0"} if fault != "500" else {}))
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
