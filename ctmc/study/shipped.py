"""The studies that come with the package, found by name."""

from __future__ import annotations

from pathlib import Path

from ctmc.errors import unknown_name


def _folder() -> Path:
    package = Path(__file__).resolve().parent.parent
    installed = package / "data" / "studies"
    return installed if installed.is_dir() else package.parent / "data" / "studies"


def shipped_studies() -> list[str]:
    """Return the names of the studies that come with the package.

    Examples
    --------
    >>> "quickstart" in shipped_studies()
    True
    """
    folder = _folder()
    return sorted(path.stem for path in folder.glob("*.toml")) if folder.is_dir() else []


def find_study(given: str) -> Path:
    """Return the path of a study: a file, or the name of one that comes with the package.

    Raises
    ------
    UnknownNameError
        If it is neither; close names are listed.
    """
    path = Path(given)
    if path.suffix == ".toml" or len(path.parts) != 1 or path.is_file():
        return path
    if given in shipped_studies():
        return _folder() / f"{given}.toml"
    if path.exists() or path.is_symlink():
        return path  # not a regular file; reading says what is wrong with it
    raise unknown_name("study file or study", given, shipped_studies())
