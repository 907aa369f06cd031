"""`regard play`: serve the playground to a browser, or save it as a file."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path

import click

from regard.cli.common import Mistake

PORT = 8737
CHAPTERS = 8
HELP = """Drag a query and keys in a browser, and compare the weights of every score.

The playground is served to this machine only, and a browser opens. With --save the page is written to a
file, which opens from disk and needs no network.

\b
Examples:
  regard play
  regard play --chapter 3 --lang zh
  regard play --no-browser --port 0
  regard play --save playground.html

Exit codes: 0 done, or ended by Ctrl-C; 2 a mistake in the arguments.
"""


@click.command(help=HELP)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to serve on; 0 takes a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@click.option(
    "--chapter",
    metavar="N",
    type=click.IntRange(1, CHAPTERS),
    default=None,
    help="Start with this chapter of docs/learn.",
)
@click.option(
    "--lang",
    type=click.Choice(["en", "zh"]),
    default=None,
    help="Language of the page.  [default: the browser's]",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write the page to a file instead of serving it.",
)
def play(
    port: int, no_browser: bool, chapter: int | None, lang: str | None, save: Path | None
) -> None:
    """Serve or save the page; the help text is above."""
    fields = {"chapter": chapter, "lang": lang}
    state = "".join(f"&{name}={value}" for name, value in fields.items() if value is not None)
    link = f"#v=1{state}" if state else ""
    if save is not None:
        save_page(save)
    else:
        serve(port, link, no_browser)


def save_page(path: Path) -> None:
    """Write the page and print where it is."""
    from regard.play.build import write_page

    try:
        written = write_page(path)
    except OSError as error:
        raise Mistake(f"--save {path}: {error.strerror or error}") from None
    click.echo(f"Saved: {written}")


def serve(port: int, link: str, no_browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    from regard.play.serve import Server

    try:
        server = Server(port)
    except OSError as error:
        raise Mistake(
            f"--port {port}: {error.strerror or error}. For a free port: regard play --port 0"
        ) from None
    with server:
        click.echo(f"Playground: {server.url}{link}\nCtrl-C ends it.")
        if not no_browser:
            with contextlib.suppress(
                webbrowser.Error
            ):  # the user can still open the printed address
                webbrowser.open(server.url + link)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
