"""The server: one page, for this machine alone."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from regard.cli import play as command
from regard.cli.app import group
from regard.play import build
from regard.play.serve import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(0) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(
    server: Server, method: str = "GET", path: str = "/", host: str | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.putrequest(method, path, skip_host=True)
    if host != "":
        connection.putheader("Host", f"127.0.0.1:{server.port}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_the_page(server: Server) -> None:
    for path in ("/", "/index.html"):
        status, headers, body = ask(server, path=path)
        assert status == 200
        assert body.decode() == build()
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    status, headers, body = ask(server, "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == len(build().encode())


def test_only_names_of_the_loopback(server: Server) -> None:
    port = server.port
    assert ask(server, host=f"localhost:{port}")[0] == 200
    for host in ("", "example.org", f"example.org:{port}", f"127.0.0.1:{port + 1}", "127.0.0.1",
                 f"localhost.example.org:{port}", f"127.0.0.1:{port}, example.org", "[::1]"):  # fmt: skip
        status, _, body = ask(server, host=host)
        assert status == 421, host
        assert b"<" not in body


@pytest.mark.parametrize(
    "path", ["/other", "/../serve.py", "/page/app.js", "/?a=1", "/%2e%2e/", "http://a.b/"]
)
def test_only_its_page(server: Server, path: str) -> None:
    status, headers, body = ask(server, path=path)
    assert status == 404
    assert headers["Content-Type"] == "text/plain"
    assert len(body) < 100


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_only_reading(server: Server, method: str) -> None:
    assert ask(server, method)[0] == 501


def test_only_the_loopback_is_listened_on(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/"
    # Another address of this machine, one that is always there, is not answered.
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server.port), timeout=2)


def test_a_taken_port_is_one_clear_error(server: Server) -> None:
    result = CliRunner().invoke(group, ["play", "--no-browser", "--port", str(server.port)])
    assert result.exit_code == 2
    assert f"--port {server.port}: Address already in use" in result.output
    assert "regard play --port 0" in result.output


def test_save(tmp_path: Path) -> None:
    path = tmp_path / "playground.html"
    result = CliRunner().invoke(group, ["play", "--save", str(path)])
    assert (result.exit_code, result.output) == (0, f"Saved: {path}\n")
    assert path.read_text(encoding="utf-8") == build()
    result = CliRunner().invoke(group, ["play", "--save", str(tmp_path / "no" / "page.html")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.output


@pytest.mark.parametrize(
    ("options", "link"),
    [([], ""), (["--chapter", "3"], "#v=1&chapter=3"), (["--lang", "zh"], "#v=1&lang=zh")],
)
def test_the_browser_is_opened_where_the_page_is(
    options: list[str], link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", opened.append)

    def stop(self: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", stop)
    result = CliRunner().invoke(group, ["play", "--port", "0", *options])
    assert result.exit_code == 0
    (address,) = opened
    assert f"Playground: {address}\n" in result.output
    assert address.endswith(f"/{link}")
    CliRunner().invoke(group, ["play", "--port", "0", "--no-browser"])
    assert len(opened) == 1


def test_wrong_options() -> None:
    for options in (["--port", "70000"], ["--chapter", "9"], ["--lang", "fr"]):
        assert CliRunner().invoke(group, ["play", *options]).exit_code == 2


def test_it_needs_the_standard_library_alone() -> None:
    probe = (
        "import sys; sys.modules.update(dict.fromkeys(['click', 'rich', 'jinja2', 'matplotlib']));"
        "from regard.play.serve import Server; print(Server(0).url)"
    )
    found = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("http://127.0.0.1:")
