"""What the command line changes in a study before it is read: ``arrival_rate=2``, ``arrival_rate=1,2,3``, ``tolerance=1e-8``."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ctmc import registry
from ctmc.errors import CTMCError, StudyError, printable, shown, unknown_name
from ctmc.study.parameters import from_text

_RANGE = re.compile(r"[^:,;]+(?::[^:,;]+){1,2}")


def overridden(content: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return the content of a study with some values replaced; the content itself stays as it is.

    Parameters
    ----------
    content : mapping
        As TOML gives it.
    changes : iterable of str
        ``KEY=VALUE`` changes a parameter of every model that has it, ``MODEL.KEY=VALUE`` of one, ``tolerance=VALUE`` that of every
        question.  Several values, or a range ``1:5`` or ``0.5:2:0.5``, make a sweep where the parameter takes one.

    Raises
    ------
    StudyError
        If there is no such key, or the value does not fit; names the change.

    Examples
    --------
    >>> study = {"models": {"queue": {"builder": "tandem_network", "arrival_rate": 1}}}
    >>> overridden(study, ["arrival_rate=1,2"])["models"]["queue"]
    {'builder': 'tandem_network', 'sweep': {'arrival_rate': [1, 2]}}
    """
    changed = copy.deepcopy(dict(content))
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        if not (key and equals and text):
            raise StudyError(f"--set is {shown(change)}; allowed is KEY=VALUE, such as arrival_rate=1,2,3.")
        try:
            _apply(changed, key, text)
        except CTMCError as error:
            message = str(error)
            raise StudyError(f"--set {printable(change)}: {message[0].lower()}{message[1:]}") from None
    return changed


def _apply(content: dict[str, Any], key: str, text: str) -> None:
    models = content.get("models")
    models = (
        {name: table for name, table in models.items() if isinstance(table, dict)} if isinstance(models, dict) else {}
    )
    if key == "tolerance":
        steps = content.get("solve")
        for step in steps if isinstance(steps, list) else []:
            if isinstance(step, dict):
                step["tolerance"] = from_text(key, text, float)
        return
    named, _, parameter = key.rpartition(".")
    if named and named not in models:
        raise unknown_name("model", named, models)
    known = {name: _parameters(table) for name, table in models.items() if not named or name == named}
    chosen = [name for name, parameters in known.items() if parameter in parameters]
    if not chosen:
        every = {one for parameters in known.values() for one in parameters}
        raise unknown_name("parameter of the models", parameter, every if named else [*every, "tolerance"])
    for name in chosen:
        _set(models[name], parameter, text, known[name][parameter])


def _parameters(table: Mapping[str, Any]) -> dict[str, Any]:
    builder = table.get("builder")
    if builder not in registry.builder_names():
        return {}  # the reader says so, with the line
    signature = registry.builder_parameters(str(builder)).parameters
    return {name: parameter.annotation for name, parameter in signature.items()}


def _set(table: dict[str, Any], key: str, text: str, annotation: Any) -> None:
    swept = table.get("sweep")
    swept = dict(swept) if isinstance(swept, dict) else {}
    swept.pop(key, None)
    table.pop(key, None)
    try:
        table[key] = from_text(key, text, annotation)
    except CTMCError:
        values = _several(key, text, annotation)
        if values is None:
            raise
        swept[key] = values
    table.pop("sweep", None)
    if isinstance(swept.get("together"), list):  # what has one value only advances with nothing
        groups = [
            [name for name in names if name != key or key in swept] if isinstance(names, list) else names
            for names in swept.pop("together")
        ]
        groups = [names for names in groups if not (isinstance(names, list) and len(names) == 1)]
        swept |= {"together": groups} if groups else {}
    if swept:
        table["sweep"] = swept


def _several(key: str, text: str, annotation: Any) -> Any:
    """Return the values of a sweep: a list, or a range as studies write it; None where the text is neither."""
    if "," in text:
        return [from_text(key, part, annotation) for part in text.split(",")]
    if _RANGE.fullmatch(text):
        return text if text.count(":") == 2 else f"{text}:1"
    return None
