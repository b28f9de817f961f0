"""In which line of a TOML file a key stands, for error messages; tomllib does not keep it."""

from __future__ import annotations

import re
import tomllib

_PART = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|[\w-]+")
_HEADER = re.compile(r"^\s*\[\[?\s*((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\]#])+?)\s*\]\]?\s*(?:#.*)?$")


def _plain(part: str) -> str:
    if part[:1] not in "\"'":
        return part
    try:
        return str(tomllib.loads(f"x = {part}")["x"])
    except tomllib.TOMLDecodeError:
        return part[1:-1]


class Lines:
    r"""The lines of a TOML file by table.

    Parameters
    ----------
    text : str

    Examples
    --------
    >>> lines = Lines("title = 'x'\n[models.queue]\nbuilder = 'a'\ncapacity = 3\n")
    >>> lines.number(("models", "queue"), "capacity"), lines.number((), "title"), lines.number(("solve",), "x")
    (4, 1, None)
    """

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._table_of: list[tuple[str | int, ...]] = []
        table: tuple[str | int, ...] = ()
        counts: dict[tuple[str | int, ...], int] = {}
        for line in self._lines:
            header = _HEADER.match(line)
            if header and "=" not in line.partition("]")[0].strip(" []").partition('"')[0]:
                table = tuple(_plain(part) for part in _PART.findall(header[1]))
                if line.lstrip().startswith("[["):
                    counts[table] = counts.get(table, -1) + 1
                    table = (*table, counts[table])
            self._table_of.append(table)

    def number(self, table: tuple[str | int, ...], key: str | None = None, within: str | None = None) -> int | None:
        """Return the number of the line, from 1, or None where it cannot be told.

        Parameters
        ----------
        table : tuple
            Names of the table, with the position of an entry of an array of tables: ``("solve", 0)``.
        key : str, optional
            Without it, the line of the table's header.
        within : str, optional
            Text of a value; a line at or below the key that contains it is preferred.
        """
        found = [number for number, name in enumerate(self._table_of) if name == table]
        if not found:
            return None
        if key is None:
            return found[0] + 1
        pattern = re.compile(rf"(?:^|[{{,\s])[\"']?{re.escape(key)}[\"']?\s*[=.]")
        begin = next((number for number in found if pattern.search(self._lines[number].partition("#")[0])), None)
        if begin is None:
            return None
        if within:
            for number in found:
                if number >= begin and within in self._lines[number]:
                    return number + 1
        return begin + 1
