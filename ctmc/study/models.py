"""How a study comes by its models: out of the store, or built; and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctmc.errors import StorageError, printable
from ctmc.interchange.formats import OWN, format_of, read
from ctmc.model.recipe import Prepared, Recipe
from ctmc.storage import load_fitting
from ctmc.storage.store import Store, touch
from ctmc.study.sweep import shown

REUSED = "reused"
_RERATED = "re-rated: "
_BUILT = "built: "
_NAMED = 3
"""Most parameters that are named as changed; a model that differs in more is a new one."""


@dataclass(frozen=True)
class Supplied:
    """Where a model is, and what was done for it.

    Attributes
    ----------
    path : Path or None
        None where it is still to be built.
    done : str
        ``reused``, ``given`` or ``read`` from a file, ``re-rated: `` with the rates, or ``built: `` with the reason in a few words.
    why : str
        The reason in full.
    """

    path: Path | None
    done: str
    why: str


class Supply:
    """Gives a study its models, one after another.

    Parameters
    ----------
    store : Store
    rebuild : bool
        Build each of them, whatever the store has.
    news : callable
        Told one line of news.
    stopped : callable
        Whether to give up waiting for another process.
    reasons : bool
        Whether to say why a model is built; without it, `reasoned` of another one says so, which knows the store as it was.
    """

    def __init__(
        self,
        store: Store,
        *,
        rebuild: bool,
        news: Callable[[str], object],
        stopped: Callable[[], bool],
        reasons: bool = True,
    ) -> None:
        self.store, self.rebuild, self.news, self.stopped, self.reasons = store, rebuild, news, stopped, reasons
        self._known: dict[str, Sequence[Mapping[str, Any]]] = {}

    def plan(self, prepared: Prepared) -> Supplied:
        """Return what `get` is going to do; `path` is None where it has to build."""
        if self.rebuild:
            return Supplied(None, "built: --rebuild", "--rebuild asks for it.")
        recipe = prepared.recipe
        if recipe is None or not recipe.reproducible:
            why = "its builder keeps no recipe" if recipe is None else "a function in its parameters has no source"
            return Supplied(None, "built: no recipe", f"{why} that could be compared.")
        found = self.store.model(recipe)
        if found is not None:
            return Supplied(found, REUSED, f"{found.name} has the same recipe.")
        changed, why = self._reason(recipe)
        parent = self.store.parent(recipe)
        if parent is not None:
            return Supplied(None, _rerated(parent[1]), f"{parent[0].name} differs in rates only.")
        return Supplied(None, f"{_BUILT}{changed}", why)

    def given(self, path: Path) -> Supplied:
        """Return the place of a model that the study names by its file."""
        if format_of(path).name == OWN:
            return Supplied(path, "given", f"{printable(path)} is named by the study.")
        model = read(path)
        stored = self.store.get_or_build(Prepared(None, lambda: model), builder=path.stem)
        return Supplied(stored.path, "read", f"{printable(path)} is named by the study.")

    def get(self, name: str, builder: str, prepared: Prepared) -> Supplied:
        """Return a model's place; where there is none it is built, or waited for if another process builds it."""
        planned = self.plan(prepared)
        if planned.path is not None:
            touch(planned.path)
            return planned
        return self._built(name, builder, prepared, planned)

    def read(self, name: str, builder: str, prepared: Prepared | None, supplied: Supplied) -> tuple[Any, Supplied]:
        """Return the model, proved by its hashes; a stored one that cannot be read, or has gone, is built again."""
        assert supplied.path is not None
        try:
            return load_fitting(supplied.path), supplied
        except StorageError as error:
            if supplied.done != REUSED or prepared is None:
                raise
            planned = Supplied(None, "built: the stored file cannot be read", str(error))
            built = self._built(name, builder, prepared, planned, rebuild=True)
            assert built.path is not None
            return load_fitting(built.path), built

    def _built(
        self, name: str, builder: str, prepared: Prepared, planned: Supplied, *, rebuild: bool = False
    ) -> Supplied:
        stored = self.store.get_or_build(
            prepared,
            builder=builder,
            rebuild=self.rebuild or rebuild,
            waiting=lambda who: self.news(f"{name}: waiting for {who}, which builds the same model."),
            stopped=self.stopped,
        )
        if not stored.built:
            return Supplied(stored.path, REUSED, "another process has built it meanwhile.")
        for note in stored.notes:
            self.news(f"{name}: {note}")
        if stored.rates:
            return Supplied(stored.path, _rerated(stored.rates), planned.why)
        if planned.done.startswith(_RERATED):  # more than rates would have changed
            assert prepared.recipe is not None
            changed, why = self._reason(prepared.recipe)
            return Supplied(stored.path, f"{_BUILT}{changed}", f"{why} (and more than rates with it)")
        return Supplied(stored.path, planned.done, planned.why)

    def learn(self, builders: Iterable[str]) -> None:
        """Take note of the models that the store has of some builders, so that those built later do not count."""
        for builder in builders:
            self._known.setdefault(builder, self.store.recipes(builder))

    def reasoned(self, supplied: Supplied, recipe: Recipe | None) -> Supplied:
        """Return what was done for a model by a `Supply` without reasons, with the reason."""
        if supplied.done != _BUILT or recipe is None:
            return supplied
        changed, why = self._reason(recipe)
        return Supplied(supplied.path, f"{_BUILT}{changed}", f"{why}{supplied.why}")

    def _reason(self, recipe: Recipe) -> tuple[str, str]:
        """Return in what a model differs from the one in the store that is most like it, in a few words and in full."""
        if not self.reasons:
            return "", ""
        if recipe.builder not in self._known:
            self._known[recipe.builder] = self.store.recipes(recipe.builder)  # as it was before this run built any
        compared = [(_changes(entry, recipe), str(entry.get("recipe_hash"))) for entry in self._known[recipe.builder]]
        changes, _ = min(compared, key=lambda one: (len(one[0]), one[1]), default=({}, ""))
        if not changes or len(changes) > _NAMED:
            return "new", "the store has no model like it."
        full = "; ".join(f"{name}: {before} -> {now}" for name, (before, now) in changes.items())
        return f"{', '.join(changes)} changed", full


def _rerated(rates: Mapping[str, Any]) -> str:
    return _RERATED + ", ".join(f"{name} {shown(value)}" for name, value in rates.items())


def _changes(entry: Mapping[str, Any], recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Return what differs between the manifest of a stored model and a recipe of the same builder: name -> (before, now)."""
    found = {}
    before, now = entry.get("parameters") or {}, recipe.parameters
    for name in sorted({*before, *now}):
        pair = (_shown(before, name), _shown(now, name))
        if pair[0] != pair[1]:
            found[f"parameter {printable(name)}"] = pair
    earlier = entry.get("functions") or {}
    for name in sorted({*earlier, *recipe.functions}):
        if earlier.get(name) != recipe.functions.get(name) and f"parameter {name}" not in found:
            found[f"source of {printable(name)}"] = ("other code", "this code")
    if entry.get("version") != recipe.version:
        found["version of the builder"] = (str(entry.get("version")), str(recipe.version))
    return found


def _shown(parameters: Mapping[str, Any], name: str) -> str:
    return shown(parameters[name]) if name in parameters else "default"
