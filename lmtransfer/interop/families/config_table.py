"""Tables that map config.json to the arguments of our encoders, for reading and for writing; one for each family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: A default that means: the key is required.
REQUIRED = object()
#: More layers than any published encoder has. A larger number means that the file is broken or hostile.
_LARGEST = {"num_layers": 1000}


@dataclass(frozen=True, slots=True)
class Setting:
    """An argument of our encoder and the matching key of config.json.

    Attributes:
        ours: name of our argument.
        theirs: name of the published key.
        default: value that transformers uses if the key is missing or null; a callable computes it from the config.
        kind: type of the value: int (above 0), float (not below 0), bool, str.
        names: our values whose published names differ, each with the published name.
        reads: further published values, each with our value.
        copies: further published keys that get the same value, because we have one argument for several keys.
        agree: whether a copy with another value is an error; otherwise it is reported and ignored.
        taken_over: whether the published value is used; if False, a nonzero value is reported and ignored.
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
        """Return our value for the config.

        Raises:
            ValueError: the key is missing, or has a value that we do not support; the message lacks only the file.
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
            raise ValueError(f"{self.theirs}={value} is not supported: lmtransfer supports {allowed}")
        if self.kind is not bool and isinstance(value, bool):
            raise ValueError(f"{self.theirs}={value!r} is not a number")
        if self.kind is float and isinstance(value, int | float) and value >= 0:
            return float(value)
        if self.kind is int and isinstance(value, int) and 0 < value <= _LARGEST.get(self.ours, 2**31):
            return value
        if self.kind is bool and isinstance(value, bool):
            return value
        wanted = {int: "a whole number above 0", float: "a number of at least 0", bool: "true or false"}[self.kind]
        raise ValueError(f"{self.theirs}={value!r} is not allowed: an encoder needs {wanted}")

    def _default_in(self, config: Mapping[str, Any]) -> Any:
        if not callable(self.default):
            return self.default
        try:
            return self.default(config)
        except (KeyError, TypeError):
            raise ValueError(
                f"{self.theirs} is missing, and the settings that it could be computed from are missing or invalid"
            ) from None

    def written(self, value: Any) -> dict[str, Any]:
        """Return the published keys for one of our values."""
        theirs = self.names.get(value, value) if not isinstance(value, list | dict) else value
        return dict.fromkeys((self.theirs, *self.copies), theirs)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A key of config.json that must have one fixed value, because nothing else is computed here.

    Attributes:
        key: name of the published key.
        value: the only allowed value, or a tuple of values that mean the same here.
        why: what is computed here, for the message.
        default: value if the key is missing or null; if omitted, the allowed value itself.
        written: whether to write the key (needed if the default of transformers differs).
    """

    key: str
    value: Any
    why: str
    default: Any = REQUIRED
    written: bool = False

    def problem_in(self, config: Mapping[str, Any]) -> str | None:
        """Describe the problem with the config, without the file name; None if there is none."""
        allowed = self.value if isinstance(self.value, tuple) else (self.value,)
        value = config.get(self.key)
        if value is None:
            value = allowed[0] if self.default is REQUIRED else self.default
        return None if value in allowed else f"{self.key}={_as_json(value)} is not supported: {self.why}"


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """All settings of an encoder in a family's config.json.

    Attributes:
        settings: settings that vary.
        fixed: keys of the format that must have one value.
        implied: our arguments that have one value in this format, or a value computed from other arguments.
        assumed: our arguments that the format does not contain, with the values that reading uses.
    """

    settings: Sequence[Setting]
    fixed: Sequence[Fixed] = ()
    implied: Mapping[str, Any | Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return our arguments, all problems, and notes on the values that are ignored."""
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
                    notes.append(f"{setting.theirs}={value} is ignored: the models of lmtransfer have no such setting")
                continue
            arguments[setting.ours] = value
            for key in setting.copies:
                if config.get(key, value) in (value, None):
                    continue
                if setting.agree:
                    problems.append(
                        f"{key}={_as_json(config[key])} differs from {setting.theirs}={_as_json(value)}: "
                        "lmtransfer uses one value for both"
                    )
                else:
                    notes.append(f"{key}={config[key]} is ignored: {setting.theirs}={value} is used for both")
        if not problems:
            arguments |= {**self.implied_by(arguments), **self.assumed}
        return arguments, problems, notes

    def implied_by(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the arguments that the format implies."""
        return {name: value(arguments) if callable(value) else value for name, value in self.implied.items()}

    def misfits(self, arguments: Mapping[str, Any]) -> list[str]:
        """The arguments, as key=value, that the format cannot express."""
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
        """Make config.json from the arguments of an encoder."""
        config: dict[str, Any] = {fixed.key: fixed.value for fixed in self.fixed if fixed.written}
        for setting in self.settings:
            config |= setting.written(arguments[setting.ours])
        return config


def _as_json(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)
