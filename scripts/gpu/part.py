"""A part of the check: named measurements, each kept in the part's JSON as soon as it is made."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What a measurement gives; ``error`` says that it failed, ``skipped`` that it is not possible here.
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the check runs.

    Attributes:
        device: ``cuda`` or ``cpu``; on a CPU everything is tiny and shows only whether it works.
        name: the device and the version of torch; measurements of another one are made again.
        large: whether the device has more than 60 GB.
        work: folder for runs and data.
    """

    device: str
    name: str
    large: bool
    work: Path

    @property
    def tiny(self) -> bool:
        """Whether only to see if everything works."""
        return self.device == "cpu"


#: Makes one measurement within a number of seconds.
Measure = Callable[[float], Numbers]


class Part:
    """Makes the measurements of one part that are not made yet.

    Args:
        name: name of the part and of its JSON.
        place: where it runs.
        folder: folder of the JSON.
        again: whether to make all measurements again.
    """

    def __init__(self, name: str, place: Place, folder: Path, *, again: bool) -> None:
        self.name, self.place, self.path = name, place, folder / f"{name}.json"
        self.made: dict[str, Numbers] = {}
        if not again and self.path.is_file():
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if saved["place"] == place.name:
                self.made = {key: value for key, value in saved["measurements"].items() if "error" not in value}

    def run(self, measurements: Mapping[str, Measure], *, seconds: float) -> bool:
        """Make what is missing; returns whether everything is made now, without an error.

        Args:
            measurements: how to make each.
            seconds: time for all of them; what does not fit is an error, and is made by the next call.
        """
        deadline = time.monotonic() + seconds
        left = [name for name in measurements if name not in self.made]
        print(f"== {self.name}" + ("" if left else ": finished already"), flush=True)
        for name in left:
            start_time = time.monotonic()
            self.made[name] = _numbers(measurements[name], deadline - start_time)
            self.made[name]["measured_in"] = round(time.monotonic() - start_time, 1)
            self._save(measurements)
            failed = self.made[name].get("error")
            print(f"{name}: {f'FAILED: {failed}' if failed else 'done'} ({self.made[name]['measured_in']} s)", flush=True)
        return all("error" not in self.made[name] for name in measurements)

    def _save(self, measurements: Mapping[str, Measure]) -> None:
        content = {
            "part": self.name,
            "place": self.place.name,
            "date": time.strftime("%Y-%m-%d"),
            "finished": all("error" not in self.made.get(name, {"error": ""}) for name in measurements),
            "measurements": {name: self.made[name] for name in measurements if name in self.made},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.with_suffix(".new")
        staged.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        staged.replace(self.path)


def _numbers(measure: Measure, seconds: float) -> Numbers:
    if seconds <= 0:
        return {"error": "left out, the time of this part is over: run the part again"}
    try:
        return measure(seconds)
    except subprocess.TimeoutExpired:
        return {"error": "stopped, the time of this part is over: run the part again"}
    except RuntimeError as error:
        return {"error": str(error)}
