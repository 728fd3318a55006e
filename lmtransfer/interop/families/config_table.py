"""config.json and the arguments of our encoders: one table a family, read in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: A default that says: the key must be there.
REQUIRED = object()
#: More layers than any published encoder has: beyond, the file is broken or hostile.
_LARGEST = {"num_layers": 1000}


@dataclass(frozen=True, slots=True)
class Setting:
    """An argument of ours and the key of config.json that says the same.

    Attributes:
        ours: our argument.
        theirs: their key.
        default: what transformers takes where the key is missing or null; called with the config where it depends on
            other keys.
        kind: what values must be: int (above 0), float (not below 0), bool, str.
        names: our values that are called otherwise there.
        reads: further values of theirs, and ours for each.
        copies: further keys of theirs that get the same value; ours has one where they have several.
        agree: copies of another value are wrong; else they are told and not taken over.
        taken_over: False where a published value is not ours to follow, and is told instead.
    """

    ours: str
    theirs: str
    default: Any = REQUIRED
    kind: type = int
    names: Mapping[Any, Any] = field(default_factory=dict)
    reads: Mapping[Any, Any] = field(default_factory=dict)
    copies: tuple[str, ...] = ()
    agree: bool = False
    taken_over: bool = True

    def value_in(self, config: Mapping[str, Any]) -> Any:
        """Ours for what the config says.

        Raises:
            ValueError: it is missing, or of no kind that we have; the message is complete but for the file.
        """
        value = config.get(self.theirs)
        if value is None:
            if self.default is REQUIRED:
                raise ValueError(f"{self.theirs} is missing")
            value = self._default_in(config)
        known = {theirs: ours for ours, theirs in self.names.items()} | dict(self.reads)
        if (value is None or isinstance(value, str | int | float)) and value in known:
            return known[value]
        if self.kind is str:
            allowed = ", ".join(str(name) for name in known)
            raise ValueError(f"{self.theirs}={value}: lmtransfer computes {allowed}")
        if self.kind is not bool and isinstance(value, bool):
            raise ValueError(f"{self.theirs}={value!r} is no number")
        if self.kind is float and isinstance(value, int | float) and value >= 0:
            return float(value)
        if self.kind is int and isinstance(value, int) and 0 < value <= _LARGEST.get(self.ours, 2**31):
            return value
        if self.kind is bool and isinstance(value, bool):
            return value
        wanted = {int: "a whole number above 0", float: "a number of at least 0", bool: "true or false"}[self.kind]
        raise ValueError(f"{self.theirs}={value!r} is not {wanted} that an encoder can have")

    def _default_in(self, config: Mapping[str, Any]) -> Any:
        if not callable(self.default):
            return self.default
        try:
            return self.default(config)
        except (KeyError, TypeError):
            raise ValueError(f"{self.theirs} is missing, and what it follows from is missing or wrong") from None

    def written(self, value: Any) -> dict[str, Any]:
        """The keys of theirs for a value of ours."""
        theirs = self.names.get(value, value) if not isinstance(value, list | dict) else value
        return dict.fromkeys((self.theirs, *self.copies), theirs)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A key of config.json that has one value in what we compute.

    Attributes:
        key: theirs.
        value: the only one; or a tuple of those that mean the same to us.
        why: what we compute, for the message.
        default: where the key is missing or null; the value itself unless given.
        written: also write it (where transformers' own default is another).
    """

    key: str
    value: Any
    why: str
    default: Any = REQUIRED
    written: bool = False

    def problem_in(self, config: Mapping[str, Any]) -> str | None:
        """What is wrong with the config, complete but for the file."""
        allowed = self.value if isinstance(self.value, tuple) else (self.value,)
        value = config.get(self.key)
        if value is None:
            value = allowed[0] if self.default is REQUIRED else self.default
        return None if value in allowed else f"{self.key}={_as_json(value)}: {self.why}"


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """All that a family's config.json says about an encoder.

    Attributes:
        settings: what varies.
        fixed: what may not vary there, though the format has it.
        implied: arguments of ours that have one value there, or one that follows from others.
        assumed: arguments of ours that the format leaves open, and what reading takes for them.
    """

    settings: Sequence[Setting]
    fixed: Sequence[Fixed] = ()
    implied: Mapping[str, Any | Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Arguments of ours, all that is wrong, and what is not taken over."""
        arguments: dict[str, Any] = {}
        problems = [problem for fixed in self.fixed if (problem := fixed.problem_in(config))]
        notes = []
        for setting in self.settings:
            try:
                value = setting.value_in(config)
            except ValueError as error:
                problems.append(str(error))
                continue
            if not setting.taken_over:
                if value:
                    notes.append(f"{setting.theirs}={value} is not taken over: the models here have none")
                continue
            arguments[setting.ours] = value
            for key in setting.copies:
                if config.get(key, value) in (value, None):
                    continue
                if setting.agree:
                    problems.append(
                        f"{key}={_as_json(config[key])} with {setting.theirs}={_as_json(value)}: one for all"
                    )
                else:
                    notes.append(f"{key}={config[key]} is not taken over: {setting.theirs}={value} counts for both")
        if not problems:
            arguments |= {**self.implied_by(arguments), **self.assumed}
        return arguments, problems, notes

    def implied_by(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that the format cannot say."""
        return {name: value(arguments) if callable(value) else value for name, value in self.implied.items()}

    def misfits(self, arguments: Mapping[str, Any]) -> list[str]:
        """The arguments, as key=value, that the format cannot say."""
        implied = self.implied_by(arguments)
        wrong = [
            f"{name}={_as_json(arguments[name])}"
            for name in implied
            if arguments.get(name, implied[name]) != implied[name]
        ]
        known = {setting.ours for setting in self.settings if setting.names and setting.kind is str}
        for setting in self.settings:
            if setting.ours in known and arguments[setting.ours] not in setting.names:
                wrong.append(f"{setting.ours}={arguments[setting.ours]}")
        return wrong

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """config.json for the arguments of an encoder."""
        config: dict[str, Any] = {fixed.key: fixed.value for fixed in self.fixed if fixed.written}
        for setting in self.settings:
            config |= setting.written(arguments[setting.ours])
        return config


def _as_json(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)
