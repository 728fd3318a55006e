"""A part of the GPU check: named measurements, each saved in the part's JSON as soon as it is taken."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.errors import LmtransferError

#: The result of a measurement; ``error`` says why it failed, ``skipped`` why it is not possible here.
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the check runs.

    Attributes:
        device: ``cuda`` or ``cpu``; on a CPU everything is tiny and shows only whether the check works.
        name: the device and the version of torch; measurements from another device or version are repeated.
        large: whether the device has more than 60 GB.
        work: folder for runs and data.
    """

    device: str
    name: str
    large: bool
    work: Path

    @property
    def tiny(self) -> bool:
        """Whether sizes are tiny, only to see whether everything works."""
        return self.device == "cpu"


#: Takes one measurement within a number of seconds.
Measure = Callable[[float], Numbers]


class Part:
    """Takes the missing measurements of one part.

    Args:
        name: name of the part and of its JSON.
        place: where the check runs.
        folder: folder of the JSON.
        again: whether to repeat all measurements.
    """

    def __init__(self, name: str, place: Place, folder: Path, *, again: bool) -> None:
        self.name, self.place, self.path = name, place, folder / f"{name}.json"
        self.numbers: dict[str, Numbers] = {}
        if not again and self.path.is_file():
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if saved["place"] == place.name:
                self.numbers = {key: value for key, value in saved["measurements"].items() if "error" not in value}

    def run(self, measurements: Mapping[str, Measure], *, seconds: float) -> bool:
        """Take the missing measurements; return whether all measurements now exist without an error.

        Args:
            measurements: functions that take the measurements, by name.
            seconds: time for all measurements; a measurement without time left is an error, and the next call takes it.
        """
        deadline = time.monotonic() + seconds
        missing = [name for name in measurements if name not in self.numbers]
        print(f"== {self.name}" + ("" if missing else ": already finished"), flush=True)
        for name in missing:
            start_time = time.monotonic()
            self.numbers[name] = _numbers(measurements[name], deadline - start_time)
            self.numbers[name]["measured_in"] = round(time.monotonic() - start_time, 1)
            self._save(measurements)
            status = f"FAILED: {self.numbers[name]['error']}" if "error" in self.numbers[name] else "done"
            print(f"{name}: {status} ({self.numbers[name]['measured_in']} s)", flush=True)
        return all("error" not in self.numbers[name] for name in measurements)

    def _save(self, measurements: Mapping[str, Measure]) -> None:
        content = {
            "part": self.name,
            "place": self.place.name,
            "date": time.strftime("%Y-%m-%d"),
            "finished": all("error" not in self.numbers.get(name, {"error": ""}) for name in measurements),
            "measurements": {name: self.numbers[name] for name in measurements if name in self.numbers},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.with_suffix(".new")
        staged.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        staged.replace(self.path)


def _numbers(measure: Measure, seconds: float) -> Numbers:
    if seconds <= 0:
        return {"error": "left out, because the time of this part is over; run the part again"}
    try:
        return measure(seconds)
    except subprocess.TimeoutExpired:
        return {"error": "stopped, because the time of this part is over; run the part again"}
    except (RuntimeError, OSError, LookupError, ValueError, LmtransferError) as error:
        return {"error": str(error) or type(error).__name__}
