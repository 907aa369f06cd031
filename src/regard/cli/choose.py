"""`regard choose`: compare scores on bundled tasks, on the user's data, or by cost at a shape."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.choosing.cost.shape import Shape, ShapeError
from regard.cli import choose_recipe
from regard.cli.common import (
    INTERRUPTED,
    Amount,
    Mistake,
    ShapeType,
    console,
    device_option,
    json_option,
    keys_help,
    offering_files,
    offering_lists,
    pick_device,
    seed_option,
)
from regard.cli.data import DATA_OPTIONS, EXAMPLES, check_data, own_data, own_task
from regard.cli.data import HELP as DATA_HELP
from regard.cli.names import TASKS
from regard_command import load_library

if TYPE_CHECKING:
    import torch

    from regard.choosing.cost import CostReport
    from regard.choosing.suite import Answer, Suite
    from regard.choosing.tasks.task import Task

NEEDS = ("optuna", "scipy", "jinja2", "sklearn")
INSTALL = "pip install 'regard[choose]'"
DEMO_MINUTES, DATA_MINUTES = 6.0, 5.0
HELP = f"""Which attention score should you use, and what will it cost?

Without options it trains every kind of score on small tasks, one for each property of data that matters
(look-up, non-linear match, unlike dims, heavy-tailed norms, one of many keys, two criteria, digits). It
says which score wins where, by how much, and what it costs. This takes about a minute on two idle cores.

{DATA_HELP}

{choose_recipe.HELP}

With --shape it trains nothing, and measures time, memory, parameters and error of every score at that
shape.

\b
Examples:
  regard choose
{EXAMPLES}
  regard choose --data mine.parquet --storage postgresql://host/db --resume
{choose_recipe.EXAMPLES}
  regard choose --shape d_q=256,d_k=128,len=1024,heads=8
  regard choose --shape d_q=512,d_k=256,len_q=1,len_k=8192 --json

{keys_help()}

Exit codes: 0 done; 1 a file could not be written, a task had no verdict, or a score failed its error
check; 2 a mistake in the arguments or the data; 130 interrupted (the results so far are printed, and
--resume continues).
"""


def choose_options(command: Any) -> Any:
    """The options, in the order of --help."""
    options = [
        *DATA_OPTIONS,
        *choose_recipe.OPTIONS,
        click.option("--tasks", metavar="NAME,...", shell_complete=offering_lists(TASKS),
                     help="Only these of the bundled tasks."),
        click.option("--minutes", type=Amount(0.05, 10000), metavar="M",
                     help="Time for training.  [default: at most 6; with --data 5]"),
        click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True,
                     metavar="N", help="Random seeds in the final comparison."),
        click.option("--steps", type=click.IntRange(1), metavar="N",
                     help="Steps of one training.  [default: the task's, or what fits]"),
        click.option("--jobs", type=click.IntRange(1, 1024), metavar="N",
                     help="Parallel processes.  [default: one per core; 1 on a GPU]"),
        click.option("--storage", metavar="URL|FILE", shell_complete=offering_files,
                     help="Where to keep trainings.  [default: study.journal in --out]"),
        click.option("--resume", is_flag=True,
                     help="Continue the last run, or join one on another machine."),
        click.option("--shape", type=ShapeType(), metavar="KEY=N,...",
                     help="Compare costs at these sizes; the keys are listed above."),
        click.option("--seconds", metavar="S", type=Amount(0.1, 86400), default=30,
                     show_default=True, help="With --shape: total time for timing."),
        click.option("--threads", metavar="N", type=click.IntRange(1, 1024), default=None,
                     help="With --shape: CPU threads.  [default: the free cores]"),
        click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                     default=Path("regard-choose"), show_default=True,
                     help="Output folder."),
        click.option("--report", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Path of the HTML report.  [default: choose.html in --out]"),
        json_option,
        device_option,
        seed_option,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command(help=HELP)
@choose_options
@click.pass_context
def choose(ctx: click.Context, recipe: str | None, shape: Shape | None, **options: Any) -> None:
    """Compare; the help text is above."""
    choose_recipe.check_options(ctx)
    if recipe is not None:
        choose_recipe.by_recipe(recipe, ctx)
        return
    own = own_data(options)
    if shape is not None and own:
        raise Mistake("--shape compares costs, --data trains: give one of them")
    if own:  # before anything that takes seconds to load
        check_data(options)
    load_library()
    where = pick_device(options.pop("device"))
    if shape is not None:
        by_cost(shape, where, options)
    else:
        by_training(own, where, options)


def tell_answer(answer: Answer, alone: bool) -> None:
    """Print a line for a finished task, unless it failed and is the only one.

    The only task's failure is reported at the end, as an error.
    """
    from regard.choosing.present import line

    if answer.verdict or not alone:
        click.echo(line(answer), err=True)


def by_training(own: bool, where: torch.device, options: dict[str, Any]) -> None:
    """Train on the tasks, or on the user's data."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise Mistake(f"training needs {', '.join(missing)}: {INSTALL}. --shape does not need them")
    import torch

    from regard.choosing.present import show_first_look, show_suite
    from regard.choosing.suite import first_look, run_suite
    from regard.choosing.training.show import shown
    from regard.measuring.files import json_bytes
    from regard.measuring.machine import calm_threads

    tasks = pick_tasks(own, options)
    as_json, out = options["as_json"], options["out"]
    storage = options["storage"] or out / "study.journal"
    check_storage(storage)
    if not options["resume"]:
        tell_unfinished(tasks, storage)
    screen, headline = console(stderr=as_json), None
    if not own:
        if where.type == "cpu":
            torch.set_num_threads(calm_threads())
        headline = first_look(where)
        show_first_look(headline, screen)
    more = {name: options[name] for name in ("steps", "heads") if options[name] is not None}
    with shown(True) as tell:
        suite = run_suite(
            tasks,
            minutes=options["minutes"] or (DATA_MINUTES if own else DEMO_MINUTES),
            storage=storage,
            tell=tell,
            on_answer=partial(tell_answer, alone=own),
            seeds=options["seeds"],
            jobs=options["jobs"] or default_jobs(where),
            resume=options["resume"],
            device=where,
            **more,
        )
    suite.headline = headline
    tell_unexamined(suite)
    if own and suite.failed:
        raise Mistake(suite.failed[0].reason)
    try:
        if as_json:
            click.echo(json_bytes(suite.as_dict()).decode(), nl=False)
        else:
            show_suite(suite, screen)
    finally:  # an output that cannot be written, as on a full disk, must not cost the files
        saved = save_suite(suite, out, options["report"], quiet=as_json)
    if suite.interrupted:
        click.echo("Interrupted: the same command with --resume continues.", err=True)
        raise SystemExit(INTERRUPTED)
    if suite.failed or not saved:
        raise SystemExit(1)


def pick_tasks(own: bool, options: dict[str, Any]) -> list[Task]:
    """The user's data, or the tasks that come with the library."""
    if own:
        return [own_task(options)]
    from regard.choosing.tasks.embedded import RENAMED, all_tasks

    tasks, names = all_tasks(), options["tasks"]
    if names is None:
        return tasks
    wanted = [name.strip() for name in names.split(",")]
    known = {task.name: task for task in tasks}
    for old in RENAMED.keys() & wanted:
        click.echo(f"Note: the task {old!r} is now called {RENAMED[old]!r}.", err=True)
    wanted = [RENAMED.get(name, name) for name in wanted]
    for name in wanted:
        if name not in known:
            raise Mistake(f"--tasks {name}: unknown task. Tasks: {', '.join(known)}")
    return [known[name] for name in wanted]


def check_storage(place: str | Path) -> None:
    """Refuse a storage that cannot be opened, before any training starts."""
    from regard.choosing.training.errors import ChooseError
    from regard.choosing.training.storage import opened

    try:
        with opened(place):
            pass
    except ChooseError as error:
        raise Mistake(str(error)) from None


def tell_unfinished(tasks: list[Task], place: str | Path) -> None:
    """Tell the user about an unfinished run on the same data, which --resume would continue."""
    from regard.choosing.training.series import left_behind
    from regard.choosing.training.show import UNFINISHED

    if any(left_behind(place, task.name, task.data) for task in tasks):
        click.echo(UNFINISHED.format(resume="--resume"), err=True)


def tell_unexamined(suite: Suite) -> None:
    """Warn once if the doctor failed, with the first error; the report names the candidates."""
    verdicts = [answer.verdict for answer in suite.answers if answer.verdict is not None]
    rows = [row for verdict in verdicts for row in verdict.rows]
    errors = [row.vitals["error"] for row in rows if "error" in row.vitals]
    if errors:
        click.echo(
            f"Warning: the doctor could not examine {len(errors)} of the trained candidates "
            f"({errors[0]}). Qualities and costs are not affected.",
            err=True,
        )


def default_jobs(where: torch.device) -> int:
    """The number of cores that this process may use; 1 on a GPU, since processes do not share one."""
    if where.type == "cuda":
        return 1
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else [0]
    return max(len(cores), 1)


def save_suite(suite: Suite, out: Path, report: Path | None, quiet: bool) -> bool:
    """Write choose.json and the report; return whether that worked."""
    from regard.choosing.report import write_report
    from regard.measuring.files import json_bytes, write_atomic

    path = report or out / "choose.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / "choose.json", json_bytes(suite.as_dict()))
        write_report(suite, path)
    except OSError as error:
        return unsaved(out, error)
    click.echo(f"Saved in {out}: choose.json\nOpen the report in a browser: {path}", err=quiet)
    return True


def unsaved(out: Path, error: OSError) -> bool:
    """Print why the results were not saved; return False."""
    why = error.strerror or str(error)
    click.echo(f"Error: --out {out}: the results were not saved: {why}", err=True)
    return False


def by_cost(shape: Shape, where: torch.device, options: dict[str, Any]) -> None:
    """Measure every score at a shape."""
    import torch

    from regard.choosing.cost import files, measure
    from regard.choosing.cost.present import show_report
    from regard.cli.progress import progress
    from regard.measuring.machine import calm_threads

    as_json = options["as_json"]
    if where.type == "cpu":
        torch.set_num_threads(options["threads"] or calm_threads())
    with progress(console(stderr=True)) as step:
        try:
            report = measure(
                shape,
                device=where,
                seed=options["seed"],
                seconds=options["seconds"],
                on_step=step,
            )
        except ShapeError as error:
            raise Mistake(str(error)) from None
    try:
        if as_json:
            click.echo(files.to_json(report), nl=False)
        else:
            show_report(report, console())
    finally:  # an output that cannot be written, as on a full disk, must not cost the files
        saved = save(report, options["out"], quiet=as_json)
    if report.interrupted:
        raise SystemExit(INTERRUPTED)
    if report.of("failed") or not saved:
        raise SystemExit(1)


def save(report: CostReport, out: Path, quiet: bool) -> bool:
    """Write the files and print where they are; return whether that worked."""
    from regard.choosing.cost import files

    try:
        written = files.save(report, out)
    except OSError as error:
        return unsaved(out, error)
    names = ", ".join(path.name for path in written)
    click.echo(f"Saved in {out}: {names}", err=quiet)
    return True
