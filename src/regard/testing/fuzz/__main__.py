"""`python -m regard.testing.fuzz`: random calls against fp64 textbooks, until all are right or one is not."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from regard.testing.fuzz import op
from regard.testing.fuzz.cases import draw, judge_case
from regard.testing.fuzz.code import as_code
from regard.testing.fuzz.runner import CHUNK, progress, run
from regard.testing.fuzz.shrink import shrink
from regard.testing.fuzz.tally import State


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m regard.testing.fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="how many, default %(default)s")
    parser.add_argument("--seed", type=int, help="which; default: the day, as 20300131")
    parser.add_argument("--report", type=Path, help="write counts and failures to this file")
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, 0 for none")
    parser.add_argument("--resume", action="store_true", help="go on with the run of the report")
    parser.add_argument("--engine", default="any", help="calls of the op by this engine alone")
    parser.add_argument(
        "--device",
        default="cpu",
        help="where calls of the op run, with --engine; default %(default)s",
    )
    parser.add_argument("--case", type=int, help="run one case: its call, code and differences")
    return parser.parse_args()


def show(number: int, engine: str) -> int:
    """Print one case; 1 if it is wrong."""
    case = draw(number, engine)
    problems = judge_case(case).problems
    print(f"{case}\n\n{as_code(case)}\n")
    print("\n".join(problems) or "right")
    if problems:
        small = shrink(case)
        print(f"\nsmaller: {small}\n\n{as_code(small)}\n")
        print("\n".join(judge_case(small).problems))
    return int(bool(problems))


def main() -> int:
    """Run what the command line says; 0 if every call was right."""
    given = arguments()
    # By default the process would end at once and leave its workers running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if given.device != "cpu" and given.engine == "any":
        sys.exit("--device is for calls of the op: name an --engine, as triton")
    op.DEVICE[0] = given.device
    if given.case is not None:
        return show(given.case, given.engine)
    seed = int(time.strftime("%Y%m%d")) if given.seed is None else given.seed
    state = State(seed, given.calls, CHUNK, given.engine)
    if given.resume:
        if given.report is None:
            sys.exit("--resume goes on with the run of a report: give --report too")
        kept = given.report.with_suffix(".json")
        if kept.exists():
            saved = State.load(kept)
            state.seed = saved.seed if given.seed is None else state.seed
            if saved.settings() != state.settings():
                sys.exit(
                    f"{kept} is of seed {saved.seed}, {saved.calls} calls and engine {saved.engine}: "
                    "give the same, or leave out --resume"
                )
            state = saved
    state = run(state, given.report, given.jobs, given.minutes, device=given.device)
    print(progress(state))
    for failure in state.tally.failures[:20]:
        print(f"\ncase {failure['case']}: {failure['smaller']}")
        print("\n".join(f"  {problem}" for problem in failure["still"]))
    return int(state.tally.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
