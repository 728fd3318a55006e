"""A trial: kill a command once or twice at random moments, resume it, and compare with an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .comparing import differences
from .process import Command, descendants, environment, start, still_there
from .scenarios import Scenario
from .world import World

#: Folders in which a checkpoint is written, or kept while it is replaced, and other temporary files.
_CHANGING = re.compile(r"\.(last|best|tokens-\d+)\.(new|old)|\..*\.tmp")
_RESUMED = re.compile(r"resuming after step ([\d,]+) from (\S+)")
_DONE = re.compile("already exists|already holds an export")
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
_DRAWS = 12  # draws of a moment, until one is before the end of the command

#: The moment of a kill.
BEFORE, SAVING, BETWEEN = "before the first save", "inside a save", "after a save"
MOMENTS = (BEFORE, SAVING, BETWEEN)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill."""

    signal: str
    everybody: bool
    after: float
    moment: str
    status: int


@dataclass(slots=True)
class Outcome:
    """The outcome of a trial."""

    trial: int
    scenario: str
    kills: list[Kill] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    temporary: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing is different, lost or wrong."""
        return not (self.different or self.lost or self.problems)

    def as_dict(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return asdict(self)


class Trials:
    """Kills the command of one scenario any number of times; the undisturbed run is made once and kept.

    All files are in a folder of the scenario: ``at``, where the command runs, so that its paths are the same in every
    trial; ``alone``, the result of the undisturbed run; and ``kept-<trial>`` for a trial that failed.
    """

    def __init__(self, scenario: Scenario, world: World, work: Path, *, seed: int) -> None:
        self.scenario, self.world, self.seed = scenario, world, seed
        self.folder = work.resolve() / re.sub(r"[^a-z0-9_]+", "-", scenario.name)
        self.at, self.alone = self.folder / "at", self.folder / "alone"
        self.temporary, self.said = self.folder / "tmp", self.folder / "said.txt"
        self.running: Command | None = None

    def leave_alone(self) -> None:
        """Make the undisturbed run, unless it exists.

        Raises:
            RuntimeError: it failed.
        """
        if not (self.folder / "alone.json").is_file():
            self.world.need(*self.scenario.needs)
            self._clear()
            command = self._start(again=False)
            first = command.seconds
            while not command.ended and not any(self.at.iterdir()):
                time.sleep(0.01)
                first = command.seconds
            if command.wait():
                raise RuntimeError(f"{self.scenario.name}: {command.output()}")
            self._time(first=first, seconds=command.seconds)
            shutil.rmtree(self.alone, ignore_errors=True)
            self.at.rename(self.alone)
        known = json.loads((self.folder / "alone.json").read_text())
        self.first, self.seconds = float(known["first"]), float(known["seconds"])

    def trial(self, number: int, *, inside_a_save: bool | None = None) -> Outcome:
        """Kill the command, resume it to its end, and compare; no kills if all drawn moments were after its end."""
        start_time, outcome = time.monotonic(), Outcome(number, self.scenario.name)
        self.leave_alone()
        rng = random.Random(f"{self.seed} {number}")
        wanted = 2 if rng.random() < 0.3 else 1
        try:
            for _ in range(_DRAWS):
                self._clear()
                self._kill_often(outcome, rng, wanted, inside_a_save)
                if outcome.kills:
                    break
            outcome.different = differences(self.alone, self.at)
        finally:
            if self.running is not None and not self.running.ended:
                self.running.kill(everybody=True)
        outcome.temporary = sorted(path.name for path in self.temporary.iterdir())
        outcome.seconds = round(time.monotonic() - start_time, 1)
        if not outcome.is_good:
            kept = self.folder / f"kept-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.at, kept / "at", symlinks=True)
            shutil.copyfile(self.said, kept / "said.txt")
        return outcome

    def _kill_often(self, outcome: Outcome, rng: random.Random, wanted: int, inside_a_save: bool | None) -> None:
        """Start the command, kill it ``wanted`` times, and let it end; fewer kills if it ends first."""
        again = False
        while True:
            before, place = unfinished(self.at), self.said.stat().st_size
            command = self._start(again=again)
            kill = None
            if len(outcome.kills) < wanted:
                kill = self._kill(command, rng, inside_a_save, outcome)
            if kill is None:
                status = command.wait()
                if again and self._refused(command, status):
                    return  # the kill came after everything was done
                if status:
                    outcome.problems.append(f"exit status {status}: {_last_line(command.output())}")
                elif again:
                    said = command.said.read_bytes()[place:].decode(errors="replace")
                    outcome.lost += self._not_gone_on_from(before, said)
                else:  # adjust the timing to the current speed of the machine
                    faster = min(1.0, command.seconds / self.seconds)
                    self._time(first=self.first * faster, seconds=command.seconds)
                return
            outcome.kills.append(kill)
            now = unfinished(self.at)
            outcome.lost += [f"{run}: step {step} before the second kill, {now[run]} after it"
                             for run, step in before.items() if run in now and now[run] < step]  # fmt: skip
            again = True

    def _kill(self, command: Command, rng: random.Random, inside_a_save: bool | None, outcome: Outcome) -> Kill | None:
        """Kill a command at a random moment; None if it had ended before."""
        aims_at_save = rng.random() < 0.4 if inside_a_save is None else inside_a_save
        early = rng.random() < 0.1 and not aims_at_save
        moment = rng.uniform(0, self.first) if early else rng.uniform(self.first, self.seconds)
        name = "SIGKILL" if aims_at_save or rng.random() < 0.7 else rng.choice(_SIGNALS)
        everybody, delay = rng.random() < 0.7, rng.choice((0.0, 0.0, 0.0, 0.001, 0.002, 0.005))
        old = set(_staged(self.at))
        while command.seconds < moment and not command.ended:
            time.sleep(min(0.01, max(0.0, moment - command.seconds)))
        if aims_at_save:
            while not command.ended and old.issuperset(_staged(self.at)):
                pass
            time.sleep(delay)
        if command.ended:
            return None
        after, others = round(command.seconds, 2), descendants(command.process.pid)
        if name == "SIGKILL":
            command.kill(everybody=everybody)
        elif name == "SIGTERM":
            command.process.terminate()
        else:
            os.killpg(command.process.pid, getattr(signal, name))  # as a terminal does: the whole group gets the signal
        status = command.wait()
        if status == 0 or (name == "SIGKILL" and status != -signal.SIGKILL) or self._refused(command, status):
            return None
        left = still_there(others, seconds=90)
        if left:
            outcome.problems.append(f"{name} after {after} s: {len(left)} processes are left behind")
        outcome.problems += self._wrong_status(name, status, after)
        return Kill(name, everybody and name == "SIGKILL", after, self._moment(old), status)

    def _refused(self, command: Command, status: int) -> bool:
        """Whether an ended command that does not train found its work done, and said so."""
        return status == 2 and not self.scenario.trains and bool(_DONE.search(_last_line(command.output())))

    def _wrong_status(self, name: str, status: int, after: float) -> Iterator[str]:
        """The problem of an exit status after a signal."""
        number = getattr(signal, name)
        if status == 75 and self.scenario.trains:
            saved = unfinished(self.at)
            for run, logged in _logged(self.at).items():
                if run in saved and saved[run] < logged:
                    yield f"{name} after {after} s: {run} has logged step {logged} and saved step {saved[run]}"
        elif status == -number and (name == "SIGKILL" or after < self.first):
            return  # the process had not installed its signal handlers yet
        elif status != 128 + number:
            yield f"{name} after {after} s: exit status {status}: {_last_line(self.said.read_text(errors='replace'))}"

    def _moment(self, old: set[str]) -> str:
        if not old.issuperset(_staged(self.at)):
            return SAVING
        names = {path.name for path in self.at.rglob("*.json")}
        done = names & {"manifest.json", "result.json", "tokenizer.json"} or any(self.at.rglob("blocks/*.json"))
        return BETWEEN if done else BEFORE

    def _not_gone_on_from(self, before: dict[str, int], said: str) -> Iterator[str]:
        """The checkpoints that a command did not resume from although there was nothing newer."""
        said += "".join(path.read_text(errors="replace") for path in self.at.rglob("logs/*.log"))
        resumed = [(int(step.replace(",", "")), place) for step, place in _RESUMED.findall(said)]
        for run, step in before.items():
            if not any(other == step and Path(place).parents[1] == self.at / run for other, place in resumed):
                yield f"{run}: step {step} was saved, and is not gone on from"

    def _start(self, *, again: bool) -> Command:
        cache = self.at / "cache" if self.scenario.own_cache else self.world.cache
        words = [*self.scenario.words, *(self.scenario.more if again else ())]
        variables = environment(cache=cache, temporary=self.temporary)
        self.running = start(words, self.at, variables=variables, said=self.said)
        return self.running

    def _clear(self) -> None:
        for folder in (self.at, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.said.write_bytes(b"")

    def _time(self, *, first: float, seconds: float) -> None:
        self.first, self.seconds = first, seconds
        (self.folder / "alone.json").write_text(json.dumps({"first": first, "seconds": seconds}) + "\n")


def unfinished(folder: Path) -> dict[str, int]:
    """The runs below a folder that have a complete checkpoint and no result, with the step of the newest checkpoint."""
    found: dict[str, int] = {}
    for checkpoints in folder.rglob("checkpoints"):
        run = checkpoints.parent
        places = [place for place in checkpoints.iterdir() if "tokens-" not in place.name]  # no run resumes from those
        steps = [step for place in places if (step := _step(place)) is not None]
        if steps and not (run / "result.json").is_file() and not _is_staged(run):
            found[run.relative_to(folder).as_posix()] = max(steps)
    return found


def _step(checkpoint: Path) -> int | None:
    """The step of a checkpoint; None if a file is missing or does not match the manifest."""
    try:
        files = json.loads((checkpoint / "manifest.json").read_text())["files"]
        for name, expected in files.items():
            content = (checkpoint / name).read_bytes()
            if expected != {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}:
                return None
        return int(json.loads((checkpoint / "state.json").read_text())["step"])
    except (OSError, ValueError, KeyError):
        return None


def _logged(folder: Path) -> dict[str, int]:
    """The last logged step of each run."""
    found = {}
    for path in folder.rglob("metrics.jsonl"):
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if lines:
            found[path.parent.relative_to(folder).as_posix()] = int(json.loads(lines[-1])["step"])
    return found


def _staged(folder: Path) -> Iterator[str]:
    """The temporary files and folders below a folder. Must be fast, since it is called in a loop."""
    left = [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if _CHANGING.fullmatch(entry.name):
                        yield entry.path
                    elif entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:  # it was removed meanwhile
            continue


def _is_staged(path: Path) -> bool:
    return any(part.startswith(".") and part.endswith(".tmp") for part in path.parts)


def _last_line(said: str) -> str:
    errors: Sequence[str] = [line for line in said.splitlines() if line.startswith("lmtransfer: ")]
    return (errors or said.strip().splitlines() or [""])[-1][:300]
