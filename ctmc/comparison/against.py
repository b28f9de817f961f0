"""What has become worse since an older comparison, by rules such as ``products:+5%``.

Counts are the same on every machine, so they may fail a build; times and memory depend on what else the machine does and only warn, unless
the rule says ``seconds!:+50%``.  That an answer is no longer certified, or no longer agrees with the reference, always fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ctmc.comparison.runs import Comparison, Run
from ctmc.errors import StudyError, printable, shown

COUNTS = ("products", "iterations")
MEASURED = ("seconds", "cpu_seconds", "memory")
_ATTRIBUTES = {"seconds": "median_seconds", "memory": "allocated_bytes"}
_RULE = re.compile(r"([a-z_]+)(!?):\+(\d{1,6}(?:\.\d{1,6})?)%", flags=re.ASCII)


@dataclass(frozen=True)
class Rule:
    """How much more something may be than before.

    Attributes
    ----------
    measure : str
        One of `COUNTS` or `MEASURED`.
    percent : float
    fails : bool
        Whether more than that fails; else it warns.
    """

    measure: str
    percent: float
    fails: bool


@dataclass(frozen=True)
class Finding:
    """One thing that is worse than before, or cannot be compared with it.

    Attributes
    ----------
    sentence : str
        What `str` gives.
    fails : bool
        Whether it fails a build; else it warns.
    """

    sentence: str
    fails: bool

    def __str__(self) -> str:
        return self.sentence


def read_rule(text: str) -> Rule:
    """Return the rule that a text stands for.

    Parameters
    ----------
    text : str
        ``MEASURE:+P%``, with an exclamation mark after a measure that would only warn.

    Raises
    ------
    StudyError
        It is no such rule.

    Examples
    --------
    >>> read_rule("products:+5%"), read_rule("seconds!:+50%").fails
    (Rule(measure='products', percent=5.0, fails=True), True)
    """
    match = _RULE.fullmatch(text)
    if match is None or match[1] not in (*COUNTS, *MEASURED):
        names = ", ".join((*COUNTS, *MEASURED))
        raise StudyError(
            f"the rule is {shown(text)}; allowed is MEASURE:+P%, such as products:+5% or seconds!:+50%, with one of {names}."
        )
    return Rule(match[1], float(match[3]), match[1] in COUNTS or bool(match[2]))


def regressions(
    new: Comparison, old: Comparison, rules: Sequence[str | Rule] = ("products:+5%",)
) -> tuple[Finding, ...]:
    """Return what is worse than before, where both comparisons have the same model, solver, tolerance and start.

    Parameters
    ----------
    new, old : Comparison
    rules : sequence of str or Rule
        See `read_rule`.

    Returns
    -------
    tuple of Finding
        Models whose content has changed, and runs that are no longer made, are warnings; that nothing could be compared fails.

    Raises
    ------
    StudyError
        A rule is none.

    Examples
    --------
    >>> def compared(products):
    ...     run = Run("queue", "gmres", 1e-8, status="CONVERGED", products=products)
    ...     return Comparison("", "stationary", {}, (run,))
    >>> print(*regressions(compared(106), compared(100)))
    gmres on queue at tolerance 1e-08: products rose from 100 to 106, by 6 %; allowed is 5 %.
    >>> regressions(compared(105), compared(100))
    ()
    """
    asked = [read_rule(rule) if isinstance(rule, str) else rule for rule in rules]
    if (new.problem, new.question) != (old.problem, old.question):
        return (
            Finding(
                f"Nothing was compared: the problem is {printable(new.asked)}, and was {printable(old.asked)}.",
                True,
            ),
        )
    now = {_identity(run): run for run in new.runs}
    found = [
        Finding(f"{printable(name)} is another model than before, so its runs are not compared.", False)
        for name in new.models
        if _changed(new, old, name)
    ]
    compared, gone = 0, []
    for before in old.runs:
        run = now.get(_identity(before))
        if run is None:
            gone.append(_name(before))
        elif not _changed(new, old, run.model):
            compared += 1
            found += _lost(run, before)
            for rule in asked if run.converged and before.converged else ():
                found += _risen(run, before, rule)
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        found.append(Finding(f"{gone[0]}{more}: was run before and is no longer.", False))
    if not compared:
        found.append(
            Finding("Nothing was compared: no model, solver, tolerance and start is in both comparisons.", True)
        )
    return tuple(found)


def _identity(run: Run) -> tuple[str, str, float, str]:
    return run.model, run.solver, run.tolerance, run.start


def _name(run: Run) -> str:
    return f"{printable(run.label)} on {printable(run.model)} at tolerance {run.tolerance:g}"


def _changed(new: Comparison, old: Comparison, name: str) -> bool:
    now, before = new.models.get(name), old.models.get(name)
    # a model that cannot be read now has lost its answers, which is told run by run
    return bool(now and before and now.content_hash and before.content_hash and now.content_hash != before.content_hash)


def _lost(run: Run, before: Run) -> list[Finding]:
    if before.converged and not run.converged:
        why = f": {printable(run.message).rstrip('.')}." if run.message else "."
        return [Finding(f"{_name(run)}: it was CONVERGED and is {run.status}{why}", True)]
    if run.disagrees and not before.disagrees:
        return [Finding(f"{_name(run)}: the answer no longer agrees with the reference.", True)]
    return []


def _risen(run: Run, before: Run, rule: Rule) -> list[Finding]:
    now, then = (getattr(one, _ATTRIBUTES.get(rule.measure, rule.measure)) for one in (run, before))
    # compared without a division, as nothing may have been needed before; rounding is no rise
    if now is None or then is None or now <= then * (1 + rule.percent / 100) * (1 + 1e-12):
        return []
    share = f", by {100 * (now / then - 1):.3g} %" if then else ""
    rise = f"{then:.4g} to {now:.4g}" if rule.measure.endswith("seconds") else f"{then} to {now}"
    return [
        Finding(f"{_name(run)}: {rule.measure} rose from {rise}{share}; allowed is {rule.percent:g} %.", rule.fails)
    ]
