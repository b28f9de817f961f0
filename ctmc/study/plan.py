"""What a run would do, told without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctmc import registry
from ctmc.errors import printable
from ctmc.interchange.formats import OWN, format_of
from ctmc.solver import Solver
from ctmc.storage import load_fitting
from ctmc.storage.question import solver_text
from ctmc.study.content import Solve
from ctmc.study.models import Supplied
from ctmc.study.rows import Place, Row, places, row_without_answer, sentence
from ctmc.study.searches import found_before, search_of
from ctmc.study.work import Work


class Plan(Work):
    """A run that tells only what it would do; its rows have the status PLANNED."""

    def plan(self) -> None:
        """Fill the rows with what a run would do."""
        for name, model in self.study.models.items():
            try:
                if model.file is not None:
                    path = self.beside(model.file)
                    own = format_of(path).name == OWN
                    self.supplied[name] = Supplied(
                        path if own else None, "given" if own else "to read", f"{printable(path)}"
                    )
                    continue
                best: Mapping[str, Any] | None = {}
                if model.optimize is not None:
                    asked = search_of(model)
                    best = None if asked is None or self.rebuild else found_before(self.store, asked)
                if best is None:
                    self.supplied[name] = Supplied(None, "to build: best parameter", "the search for it solves.")
                    continue
                self.found[name] = dict(best)
                self.prepared[name] = registry.prepare(model.builder, **model.parameters, **best)
                planned = self.supply.plan(self.prepared[name])
                self.supplied[name] = replace(planned, done=planned.done.replace("built:", "to build:"))
            except Exception as error:
                self.unbuilt[name] = sentence(error)
        for place, step, solver in places(self.study):
            self.answers[place] = [self.planned(place, step, solver)]

    def planned(self, place: Place, step: Solve, solver: Solver | str | None) -> Row:
        """Return the row of one step."""
        name = place[1]
        if name in self.unbuilt:
            return row_without_answer(self.study, place, "NOT_BUILT", self.unbuilt[name])
        supplied = self.supplied[name]
        if supplied.path is None:
            return row_without_answer(
                self.study, place, "PLANNED", done="to solve: new", why="its model is to be built."
            )
        try:
            if self._loaded is None or self._loaded[0] != name:
                self._loaded = (name, load_fitting(supplied.path))  # `model` would build one that cannot be read
            problem, chosen, question = self.question(step, name, solver)
            found = self.look(name, problem, question)
        except Exception as error:
            return row_without_answer(self.study, place, "PLANNED", done="to solve: unknown", why=sentence(error))
        done = found.done if found.solution is not None else f"to solve: {found.done}"
        row = row_without_answer(self.study, place, "PLANNED", done=done, why=found.why)
        return replace(row, solver=solver_text(chosen))
