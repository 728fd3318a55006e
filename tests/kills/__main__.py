"""Kill every command that writes files at random moments, resume it, and compare with an undisturbed run.

    make kills                               200 kills; the same command again goes on
    make kills ARGS="--kills 40 --only mlm"  forty of the commands whose names hold "mlm"
    make kills ARGS="--minutes 30"           stop after half an hour; the same command goes on
    make kills ARGS="--kills 0"              the table of what is done

The commands (scenarios.py) are tiny ones on generated text, one thread each, with budgets in steps. Four
of ten kills are aimed at a save; the others come at any time between start and end. Two thirds are SIGKILL, to the
process alone or to all its descendants. The rest are SIGTERM, SIGINT and SIGHUP, after which the trained state must be
saved. Three of ten commands are killed again after they are resumed. Afterwards every file must be the same as without
a kill, except for times: weights, optimizer states and logs bit for bit, nothing incomplete, and every saved checkpoint
must have been resumed from. Each kill is a line of the ledger, kills.jsonl.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .scenarios import scenarios
from .trial import MOMENTS, Outcome, Trials
from .world import World


def main() -> None:
    """Kill until there are enough kills, then print the table; exit with 1 if something was lost or different."""
    parser = argparse.ArgumentParser(
        prog="make kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="how many in all, those of the ledger included")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn moments")
    parser.add_argument("--work", type=Path, default=Path("runs/kills"), help="folder of the ledger and of all runs")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--minutes", type=float, default=None, help="begin no trial after so many")
    parser.add_argument("--only", default="", help="commands whose names hold this")
    options = parser.parse_args()
    ledger = Ledger(options.work / "kills.jsonl", goal=options.kills)
    world = World(options.work / "world")
    chosen = {name: one for name, one in scenarios(world).items() if options.only in name}
    if not chosen:
        raise SystemExit(f"--only {options.only}: no such command; there are: {', '.join(scenarios(world))}")
    every = {name: Trials(one, world, options.work, seed=options.seed) for name, one in chosen.items()}
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _work(list(every.values()), ledger, jobs=options.jobs, until=until)
    print(table(ledger.lines))
    sys.exit(any(line["different"] or line["lost"] or line["problems"] for line in ledger.lines))


class Ledger:
    """The outcomes, each written to a file as one line as soon as it is known."""

    def __init__(self, path: Path, *, goal: int) -> None:
        self.path, self.goal = path, goal
        self.lock = threading.Lock()
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines(keepends=True) if "\n" in line]
        if text and not text.endswith("\n"):  # this script itself was killed during a write
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    @property
    def num_kills(self) -> int:
        """Number of kills so far."""
        return sum(len(line["kills"]) for line in self.lines)

    def add(self, outcome: Outcome) -> None:
        """Store an outcome and print it."""
        with self.lock:
            self.lines.append(outcome.as_dict())
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(outcome.as_dict()) + "\n")
            how = ", ".join(f"{kill.signal} {kill.moment} ({kill.after} s)" for kill in outcome.kills) or "ended first"
            print(
                f"{self.num_kills:4} {outcome.scenario}: {how}: {'the same' if outcome.is_good else 'WRONG'}",
                flush=True,
            )
            for problem in [*outcome.different, *outcome.lost, *outcome.problems]:
                print(f"       {problem}", flush=True)


def _work(every: list[Trials], ledger: Ledger, *, jobs: int, until: float | None) -> None:
    """Run trials in several threads until there are enough kills; no two threads use the same command."""
    done = Counter(line["scenario"] for line in ledger.lines)
    free: queue.Queue[tuple[int, int, Trials]] = queue.PriorityQueue()
    for place, trials in enumerate(every):
        free.put((done[trials.scenario.name], place, trials))
    stop, errors = threading.Event(), []

    def work() -> None:
        while not stop.is_set() and ledger.num_kills < ledger.goal and (until is None or time.monotonic() < until):
            number, place, trials = free.get()
            try:
                ledger.add(trials.trial(number * len(every) + place))
            except Exception as error:
                errors.append(error)
                stop.set()
            free.put((number + 1, place, trials))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(every)))]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
    except KeyboardInterrupt:
        stop.set()
        for trials in every:
            if trials.running is not None and not trials.running.ended:
                trials.running.kill(everybody=True)
        raise SystemExit("interrupted; the same command goes on") from None
    if errors:
        raise errors[0]


def table(lines: list[dict[str, Any]]) -> str:
    """Kills by command and by moment: how many ended as without a kill, and how many lost something."""
    rows = [["command", "kills", *MOMENTS, "identical", "lost"]]
    for name in [*dict.fromkeys(line["scenario"] for line in lines), None]:
        of_name = [line for line in lines if name in (None, line["scenario"])]
        kills = [kill for line in of_name for kill in line["kills"]]
        moments = Counter(kill["moment"] for kill in kills)
        same = sum(len(line["kills"]) for line in of_name if not (line["different"] or line["problems"]))
        lost = sum(len(line["kills"]) for line in of_name if line["lost"])
        numbers = [len(kills), *(moments[moment] for moment in MOMENTS), same, lost]
        rows.append([name or "all", *map(str, numbers)])
    signals = Counter(kill["signal"] for line in lines for kill in line["kills"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = [f"{row[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, row[1:], widths[1:])) for row in rows]
    return "\n".join([*text, ", ".join(f"{count} {name}" for name, count in signals.most_common())])


if __name__ == "__main__":
    main()
