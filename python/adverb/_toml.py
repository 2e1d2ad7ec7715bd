"""Writes values as TOML, on one line each: scenarios given as dicts, and the values of keys that are set."""

import json
import math
import tomllib


def inline(value):
    """A value as TOML has it in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for a character that only TOML escapes.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key(k)} = {inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if hasattr(value, "item"):
        # A scalar of NumPy.
        return inline(value.item())
    raise TypeError(f"{value!r}: a scenario has strings, numbers, truth values, lists and dicts, no {type(value).__name__}")


def key(name):
    """A key, quoted where it must be."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r}: keys of a scenario are strings")
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else inline(name)


def document(table):
    """A dict as a document."""
    return "".join(f"{key(name)} = {inline(value)}\n" for name, value in table.items())


def changed(text, keys):
    """A document with keys set otherwise, such as {"switch.buffer": "60KB"}: the last of a dotted key is the value's."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ValueError(f"the scenario is no TOML: {e}") from e
    for dotted, value in keys.items():
        inner, (*above, last) = table, dotted.split(".")
        for part in above:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{dotted}: {part} is a value of the scenario, and has no keys")
        inner[last] = value
    return document(table)


def option(values):
    """Values as the command's --set takes them: with commas between."""
    return ",".join(map(inline, values))
