"""Serves the playground on the loopback address, to browsers on this machine only."""

from __future__ import annotations

import os
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from regard.play.build import build

ADDRESS = "127.0.0.1"
# Host names in requests from a browser on this machine. Any other name comes from a website that made
# its own name resolve to this address (DNS rebinding).
NAMES = ("127.0.0.1", "localhost")
PATHS = ("/", "/index.html")
PATIENCE = 10  # seconds before an idle connection is closed
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Page(BaseHTTPRequestHandler):
    """A request handler that answers GET and HEAD for the page, and refuses everything else."""

    server: Server  # type: ignore[override] # only `Server` creates one
    server_version, sys_version = "regard", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Send the page if host and path are right, else an error in one line."""
        if self.headers.get_all("Host", []) not in ([name] for name in self.server.hosts):
            self.answer(
                HTTPStatus.MISDIRECTED_REQUEST, b"This server answers its own machine only.\n"
            )
        elif self.path not in PATHS:
            self.answer(HTTPStatus.NOT_FOUND, b"There is one page here: /\n")
        else:
            self.answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    do_HEAD = do_GET

    def answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        """Send an answer; to a HEAD request only the headers."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """A server of the page, which is built once, at the start.

    Args:
        port: to listen on; 0 takes a free one.

    Raises:
        OSError: the port is taken or not permitted.
    """

    daemon_threads = True
    # On Unix a port in use is refused even with this option; on Windows two servers would share it.
    allow_reuse_address = os.name == "posix"

    def __init__(self, port: int) -> None:
        self.page = build().encode()
        super().__init__((ADDRESS, port), Page)
        self.port = self.server_address[1]
        self.hosts = {f"{name}:{self.port}" for name in NAMES}
        if self.port == 80:  # browsers leave the default port out of the host
            self.hosts |= set(NAMES)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a connection, such as a browser that closes it early."""
