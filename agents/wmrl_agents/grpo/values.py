"""Values of settings, as YAML and the command line have them, in the types that they are meant to have."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from wmrl_envs.errors import ConfigError

__all__ = ["coerced"]


def coerced(name: str, value: Any, kind: Any) -> Any:
    """A setting's value in its own type.

    Args:
        name: Of the setting.
        value: As it was given.
        kind: A class, `Literal`, optional or tuple of names.

    Raises:
        ConfigError: It cannot be read as that.
    """
    if get_origin(kind) in (Union, types.UnionType):
        inner, _ = get_args(kind)
        return None if value in (None, "none", "None") else coerced(name, value, inner)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}.")
        return value
    if get_origin(kind) is tuple:
        return _names(name, value)
    if kind is bool:
        return _truth(name, value)
    if kind is str:
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{name} must be a text, not {value!r}.")
        return value
    return _number(name, value, kind)


def _names(name: str, value: Any) -> tuple[str, ...]:
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(type(part) in (str, int) for part in parts):
        raise ConfigError(f"{name} must be a list of names, not {value!r}.")
    return tuple(str(part) for part in parts if part != "")


def _truth(name: str, value: Any) -> bool:
    known = {"true": True, "false": False, "yes": True, "no": False}
    truth = known.get(str(value).lower())
    if truth is None:
        raise ConfigError(f"{name} must be true or false, not {value!r}.")
    return truth


def _number(name: str, value: Any, kind: type) -> Any:
    what = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{name} must be {what}, not {value!r}.")
    try:
        number = float(value)  # YAML reads 1e-6 as a text, the command line everything
    except ValueError:
        raise ConfigError(f"{name} must be {what}, not {value!r}.") from None
    if kind is float:
        return number
    if not number.is_integer():
        raise ConfigError(f"{name} must be a whole number, not {value!r}.")
    return int(number)
