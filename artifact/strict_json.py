"""JSON without NaN or Infinity, dataclasses in and out, and atomic files.

Every JSON file of the project passes through here, so that no reader ever meets a literal that a
strict parser refuses, an unknown key that silently means nothing, or half a file.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import tempfile
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_MAPPINGS = (dict, Mapping, typing.get_origin(Mapping[str, int]))


class SchemaError(ValueError):
    """A value does not have the shape its dataclass declares; the message names where."""


def _refuse_constant(name: str) -> None:
    raise SchemaError(f"JSON holds the literal {name}, which is not a number")


def loads(text: str) -> Any:
    """Parse strict JSON; NaN, Infinity and trailing text are errors (`SchemaError`)."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise SchemaError(
            f"not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})"
        ) from error


def dumps(value: Any) -> str:
    """Serialise to strict, sorted, indented JSON; a NaN or infinity raises `ValueError`."""
    return json.dumps(to_plain(value), allow_nan=False, indent=1, sort_keys=True) + "\n"


def to_plain(value: Any) -> Any:
    """Turn dataclasses, mappings, tuples and paths into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


# Reading thousands of records asks the same questions of the same few types.
_origin: Callable[[Any], Any] = functools.lru_cache(typing.get_origin)
_arguments: Callable[[Any], tuple[Any, ...]] = functools.lru_cache(typing.get_args)
_hints: Callable[[Any], dict[str, Any]] = functools.lru_cache(typing.get_type_hints)
_fields: Callable[[Any], tuple[Any, ...]] = functools.lru_cache(dataclasses.fields)


def from_plain(kind: type[T], value: Any, where: str = "") -> T:
    """Build the dataclass `kind` from plain JSON; unknown, missing or mistyped keys are errors."""
    return typing.cast(T, _convert(kind, value, where or kind.__name__))


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin = _origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(kind, value, where)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise SchemaError(f"{where}: expected a list, got {type(value).__name__}")
        item_kind = _arguments(kind)[0]
        items = [_convert(item_kind, item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin in _MAPPINGS:
        if not isinstance(value, Mapping):
            raise SchemaError(f"{where}: expected an object, got {type(value).__name__}")
        item_kind = _arguments(kind)[1]
        return {str(k): _convert(item_kind, v, f"{where}.{k}") for k, v in value.items()}
    return _convert_scalar(kind, value, where)


def _convert_union(kind: Any, value: Any, where: str) -> Any:
    options = _arguments(kind)
    if value is None and type(None) in options:
        return None
    for option in options:
        if option is not type(None):
            return _convert(option, value, where)
    raise SchemaError(f"{where}: {value!r} fits none of the declared kinds")


def _convert_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where}: expected an object, got {type(value).__name__}")
    hints = _hints(kind)
    fields = {f.name: f for f in _fields(kind) if f.init}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise SchemaError(f"{where}: unknown key {unknown[0]!r}")
    arguments = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _convert(hints[name], value[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SchemaError(f"{where}: missing key {name!r}")
    return kind(**arguments)


def _convert_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    name = getattr(kind, "__name__", str(kind))
    raise SchemaError(f"{where}: expected {name}, got {type(value).__name__}")


def read(path: Path) -> Any:
    """Read one strict JSON file; the error names the file."""
    try:
        return loads(path.read_text(encoding="utf-8"))
    except (SchemaError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaError(f"{path}: {error}") from error


def write_atomic(path: Path, value: Any) -> None:
    """Write strict JSON so that `path` is either absent, the old file, or the whole new file."""
    write_bytes_atomic(path, dumps(value).encode("utf-8"))


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write bytes to a temporary file beside `path`, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
