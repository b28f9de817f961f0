#!/usr/bin/env python3
"""Are the source archive and the wheel of a folder whole, with nothing strange in them?  Usage: .ci/archives.py FOLDER, in a clone.

The source archive must have the files that git has, byte for byte, and the wheel those of the packages and their data, and nothing else.
"""

import email
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
MADE = {"PKG-INFO", "setup.cfg"}  # setuptools writes the options of egg_info into the latter
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}


def digests(contents: dict[str, bytes]) -> dict[str, str]:
    """Return a hash for each name."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def tracked() -> dict[str, str]:
    """Return what git has, by name."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, check=True, capture_output=True, text=True).stdout
    return digests({name: (HOME / name).read_bytes() for name in names.split("\0") if name})


def of_source_archive(path: Path) -> dict[str, str]:
    """Return its files, without the folder that has all of them and what setuptools writes."""
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive if member.isfile()}
        found = digests({name: file.read() for name, file in files.items() if file is not None})
    return {name: digest for name, digest in found.items() if ".egg-info/" not in name}


def of_wheel(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return its files, and apart from them those of the folder of metadata."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    about = {name.partition(".dist-info/")[2]: contents.pop(name) for name in list(contents) if ".dist-info/" in name}
    return digests(contents), about


def differences(kind: str, found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return a line for each name that is missing, strange, or has other bytes."""
    lines = [f"{kind}: {name} is missing" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{kind}: {name} does not belong there" for name in sorted(found.keys() - expected.keys())]
    return lines + [
        f"{kind}: {name} is another file"
        for name in sorted(found.keys() & expected.keys())
        if found[name] != expected[name]
    ]


def main(folder: Path) -> int:
    """Print what is wrong and return how many lines these are."""
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    files = tracked()
    archived = of_source_archive(source)
    lines = [f"source archive: {name} is missing" for name in sorted(MADE - archived.keys())]
    rest = {name: digest for name, digest in archived.items() if name not in MADE}
    lines += differences("source archive", rest, {name: files[name] for name in files.keys() - MADE})

    packed, about = of_wheel(wheel)
    rooms = ("ctmc/", "builders/", "solvers/", "data/")
    expected = {name.replace("data/", "ctmc/data/", 1) if name.startswith("data/") else name: digest
                for name, digest in files.items() if name.startswith(rooms)}  # fmt: skip
    lines += differences("wheel", packed, expected)
    lines += differences("metadata of the wheel", dict.fromkeys(about, ""), dict.fromkeys(DIST_INFO, ""))
    metadata = email.message_from_bytes(about["METADATA"])
    fields = ("Author", "License-Expression", "License-File", "Keywords", "Requires-Python", "Description-Content-Type")
    lines += [f"metadata of the wheel: no {field}" for field in fields if not metadata[field]]
    print("\n".join(lines) or f"{source.name}: {len(archived)} files; {wheel.name}: {len(packed)} files and metadata")
    return len(lines)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
