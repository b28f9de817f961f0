"""The manifest of a file as bytes: JSON in exactly one spelling, so that equal manifests have equal hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ctmc.errors import StorageError
from ctmc.storage.atomic import failure_reason

MAX_MANIFEST_BYTES = 16 * 1024**2


def canonical_json(value: object) -> bytes:
    """Return JSON with sorted keys and no spaces, floats by `repr`, as UTF-8.

    Raises
    ------
    TypeError, ValueError, RecursionError
        Not JSON, NaN or infinity, a lone surrogate, nested too deeply.

    Examples
    --------
    >>> canonical_json({"b": 0.1, "a": [1, None, "µ"]}).decode()
    '{"a":[1,null,"µ"],"b":0.1}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def encode_manifest(manifest: Mapping[str, object]) -> bytes:
    """Return the manifest as it is stored, after checking that it can be read again; tuples become lists."""
    try:
        if not _has_text_keys(manifest):
            raise TypeError("keys must be text")
        text = canonical_json(dict(manifest))
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"the manifest cannot be stored as JSON ({failure_reason(error)})") from error
    if len(text) > MAX_MANIFEST_BYTES:
        raise StorageError(f"the manifest has {len(text):,} bytes; allowed are {MAX_MANIFEST_BYTES:,}")
    decode_manifest(text)
    return text


def decode_manifest(text: bytes) -> dict[str, Any]:
    """Return the manifest that was stored as these bytes.

    Whatever `canonical_json` cannot have written is found by writing it again: doubled keys, NaN, 1e400, lone
    surrogates, spaces, numbers in another spelling.
    """
    try:
        manifest = json.loads(text.decode())
        if not isinstance(manifest, dict) or canonical_json(manifest) != text:
            raise ValueError("it is not in canonical form")
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the manifest is not the JSON that ctmc writes ({failure_reason(error)})") from error
    return manifest


def _has_text_keys(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _has_text_keys(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(_has_text_keys(item) for item in value)
