"""The playground on the loopback: one page, for browsers on this machine alone."""

from __future__ import annotations

import os
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from regard.play.build import build

ADDRESS = "127.0.0.1"
# What a browser on this machine may call it. Any other name in a request comes from a page elsewhere
# that made its own name point here.
NAMES = ("127.0.0.1", "localhost")
PATHS = ("/", "/index.html")
PATIENCE = 10  # seconds that a silent connection is kept
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Page(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page, and refuses everything else in one line."""

    server: Server  # type: ignore[override] # no other server makes one
    server_version, sys_version = "regard", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """The page, where the request is one that a browser here would make."""
        if self.headers.get_all("Host", []) not in ([name] for name in self.server.hosts):
            self.answer(HTTPStatus.MISDIRECTED_REQUEST, b"This server answers its own machine.\n")
        elif self.path not in PATHS:
            self.answer(HTTPStatus.NOT_FOUND, b"There is one page here: /\n")
        else:
            self.answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    do_HEAD = do_GET

    def answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        """Send one answer; a HEAD request gets its head."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not reported."""


class Server(ThreadingHTTPServer):
    """Serves the page as it was built when the server started.

    Args:
        port: where to listen; 0 takes a free one.

    Raises:
        OSError: where the port is taken or not ours to take.
    """

    daemon_threads = True
    # A port that something listens on is refused; elsewhere than on Unix the option would share it.
    allow_reuse_address = os.name == "posix"

    def __init__(self, port: int) -> None:
        self.page = build().encode()
        super().__init__((ADDRESS, port), Page)
        self.port = self.server_address[1]
        self.hosts = {f"{name}:{self.port}" for name in NAMES}
        if self.port == 80:  # browsers leave it out
            self.hosts |= set(NAMES)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no news."""
