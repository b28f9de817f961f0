"""What a simulation found: means with confidence intervals, at one time or along a grid of times."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from ctmc.errors import ModelError, shown, unknown_name
from ctmc.model.parameters import check_mapping, check_name, real_number, real_numbers
from ctmc.model.summary import Rows, Summarised

CONFIDENCE = 0.95
MANY = 30
"""From so many replications on their skewness is told well enough to widen intervals by it."""
_PER_SQUARED_SKEWNESS = 15
"""Fewer replications than so many times the squared skewness are too few for an interval to be relied upon."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Estimates at a grid of times.

    Attributes
    ----------
    times : ndarray, shape (times,)
    means, half_widths : ndarray, shape (times,) or (times, length)
        Half of the width of each confidence interval, each time by itself.
    samples : ndarray, shape (replications, times) or (replications, times, length), or None
        What each replication saw; none for variances.
    """

    times: np.ndarray
    means: np.ndarray
    half_widths: np.ndarray
    samples: np.ndarray | None = None

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the confidence intervals."""
        return self.means - self.half_widths, self.means + self.half_widths


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Estimate(Summarised):
    """What a simulation found.

    Attributes
    ----------
    title : str
    run : str
        What one replication is, such as "time 1,000" or "20,000 jobs".
    means : dict of str to float or ndarray
        Estimate of each measure; a vector has one number per server.
    half_widths : dict of str to float or ndarray
        Half of the width of each confidence interval, from Student's distribution over the replications.
    samples : dict of str to ndarray, shape (replications,) or (replications, length)
        What each replication (or batch) found.
    replications : int
        Independent runs, or batches of one run.
    warm_up : float
        What was left out at the beginning of each run: time, or jobs.
    seed : int
        Gives the same estimate again.
    confidence : float
        Of the intervals.
    trajectories : dict of str to Trajectory
        Estimates at the times that were asked for.
    events : int
        Events simulated in all, those without effect included; 0 where they are not counted.
    notes : tuple of str
        What a reader should know.
    """

    title: str
    run: str
    means: Mapping[str, Any]
    half_widths: Mapping[str, Any]
    samples: Mapping[str, np.ndarray] = field(default_factory=dict)
    replications: int
    warm_up: float
    seed: int
    confidence: float = CONFIDENCE
    trajectories: Mapping[str, Trajectory] = field(default_factory=dict)
    events: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def from_samples(
        cls,
        samples: Mapping[str, np.ndarray],
        *,
        times: np.ndarray | None = None,
        paths: Mapping[str, np.ndarray] | None = None,
        variances: Sequence[str] = (),
        proportions: Sequence[str] = (),
        confidence: float = CONFIDENCE,
        notes: Sequence[str] = (),
        **known: Any,
    ) -> Estimate:
        """Return the estimate that replications give.

        Parameters
        ----------
        samples : mapping of str to ndarray, shape (replications,) or (replications, length)
        times : ndarray, shape (times,), optional
        paths : mapping of str to ndarray, shape (replications, times) or (replications, times, length), optional
        variances : sequence of str
            Names of the paths whose variance is estimated, too, as ``NAME_variance``.
        proportions : sequence of str
            Names of the samples that are 1 where something happened, and 0 where it did not.
        confidence : float
        notes : sequence of str
            Another is added where samples are too skewed for the number of replications.
        **known
            Other fields.

        Examples
        --------
        >>> found = Estimate.from_samples({"jobs": np.array([1.0, 2.0, 3.0])}, title="Three", run="one", replications=3,
        ...                               warm_up=0, seed=7)
        >>> found.means["jobs"], round(found.half_widths["jobs"], 6)
        (2.0, 2.484138)
        """
        check_mapping("samples", samples, "numbers, one row for each replication")
        real_number("confidence", confidence, lambda value: 0 < value < 1, "a number between 0 and 1")
        samples = {name: _checked_samples(name, values) for name, values in samples.items()}
        pairs = {
            name: (proportion_interval if name in proportions else student_interval)(values, confidence)
            for name, values in samples.items()
        }
        trajectories = {}
        for name, values in (paths or {}).items():
            assert times is not None
            trajectories[name] = Trajectory(times, *student_interval(values, confidence), values)
            if name in variances:
                trajectories[f"{name}_variance"] = Trajectory(times, *variance_interval(values, confidence))
        return cls(
            means={name: _plain(pair[0]) for name, pair in pairs.items()},
            half_widths={name: _plain(pair[1]) for name, pair in pairs.items()},
            samples=dict(samples),
            confidence=confidence,
            trajectories=trajectories,
            notes=(*notes, *_few_notes({**samples, **(paths or {})}, proportions)),
            **known,
        )

    def interval(self, name: str) -> tuple[Any, Any]:
        """Return the confidence interval of a measure such as ``jobs`` or ``queue_length[0]``."""
        check_name("name", name)
        base, bracket, index = name.partition("[")
        if base not in self.means:
            raise unknown_name("measure", name, self.means)
        mean, reach = self.means[base], self.half_widths[base]
        if bracket:
            number = int(index[:-1]) if index.endswith("]") and index[:-1].isdigit() else -1
            if not 0 <= number < np.size(mean) or not np.ndim(mean):
                raise unknown_name("measure", name, [f"{base}[{k}]" for k in range(np.size(mean))])
            mean, reach = float(mean[number]), float(reach[number])
        return mean - reach, mean + reach

    def _summary(self) -> tuple[str, Rows]:
        rows: list[tuple[str, object]] = []
        for name, mean in self.means.items():
            pairs = list(zip(np.ravel(mean)[:8], np.ravel(self.half_widths[name])[:8], strict=True))
            text = ", ".join(f"{value:.6g} +- {reach:.2g}" for value, reach in pairs)
            rows.append((name, text + (", .." if np.size(mean) > 8 else "")))
        if self.trajectories:
            times = next(iter(self.trajectories.values())).times
            rows.append(("trajectories", f"{', '.join(self.trajectories)} at {len(times)} times"))
        after = f" after {self.warm_up:,g}" if self.warm_up else ""
        rows.append(("replications", f"{self.replications} x {self.run}{after} (seed {self.seed})"))
        return self.title, [*rows, *(("note", note) for note in self.notes)]


def _checked_samples(name: str, given: Any) -> np.ndarray:
    samples = real_numbers(f"samples of {shown(name)}", given, "numbers, one row for each of two or more replications")
    if samples.ndim not in (1, 2) or len(samples) < 2:
        raise ModelError(
            f"samples of {shown(name)} have shape {samples.shape}; allowed is one row for each of two or more replications."
        )
    return samples


def _plain(value: np.ndarray) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def student_interval(samples: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Return means over the first axis and half widths of their confidence intervals, from Student's distribution.

    The mean of n skewed samples lies outside of Student's interval more often than it should.  From 30 on the intervals are
    widened by what Edgeworth's expansion says of the law of t, to the order 1 / n, with the skewness g and the excess k of the
    samples: by z (g^2 (z^4 + 2 z^2 - 3) / 18 - k (z^2 - 3) / 12) / n standard errors, where z is the normal quantile; never
    narrowed.  Source: P. Hall, *The Bootstrap and Edgeworth Expansion*, Springer 1992, section 2.6.

    Parameters
    ----------
    samples : ndarray, shape (replications, ..)
        At least two independent replications; few of them should be nearly normal, as averages over time are.
    confidence : float

    Examples
    --------
    >>> mean, reach = student_interval(np.arange(12.0) ** 2)
    >>> round(float(mean), 6), round(float(reach), 6)
    (42.166667, 26.153265)
    """
    count = len(samples)
    reach = np.asarray(stdtrit(count - 1, 0.5 + confidence / 2), dtype=np.float64)
    if count >= MANY:
        z = float(ndtri(0.5 + confidence / 2))
        skewness, excess = _shape(samples)
        wider = z * (skewness**2 * (z**4 + 2 * z**2 - 3) / 18 - excess * (z**2 - 3) / 12) / count
        reach = reach + np.maximum(wider, 0)
    return samples.mean(axis=0), reach / np.sqrt(count) * samples.std(axis=0, ddof=1)


def proportion_interval(samples: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of the samples that are 1, the others being 0, and the half width of its confidence interval.

    Student's, or that of A. Agresti and B. A. Coull (The American Statistician 52, 1998) where it is wider: what happened in no
    replication, or in all, is not certain.

    Examples
    --------
    >>> mean, reach = proportion_interval(np.zeros(100))
    >>> float(mean), round(float(reach), 6)
    (0.0, 0.025915)
    """
    mean, reach = student_interval(samples, confidence)
    squared = float(ndtri(0.5 + confidence / 2)) ** 2
    many = len(samples) + squared
    part = (samples.sum(axis=0) + squared / 2) / many
    return mean, np.maximum(reach, np.sqrt(squared * part * (1 - part) / many))


def _shape(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the skewness and the excess of samples over the first axis; 0 where they are all alike."""
    off = samples - samples.mean(axis=0)
    spread = np.sqrt((off**2).mean(axis=0))
    unit = np.divide(off, spread, out=np.zeros_like(off), where=spread > 0)
    return (unit**3).mean(axis=0), np.where(spread > 0, (unit**4).mean(axis=0) - 3, 0.0)


def _few_notes(samples: Mapping[str, np.ndarray], proportions: Sequence[str]) -> list[str]:
    """Return a sentence on samples that are so skewed that there are too few of them, and one on those that are all alike."""
    needed, alike = {}, []
    for name, values in samples.items():
        if name not in proportions and len(values) >= MANY:
            least = _PER_SQUARED_SKEWNESS * float(np.max(_shape(values)[0] ** 2, initial=0.0))
            if least > len(values):
                needed[name] = least
            elif (values == values[0]).all():
                alike.append(name)
    count = len(next(iter(samples.values()), ()))
    notes = []
    if needed:
        notes.append(
            f"The replications of {_listed(needed)} are skewed, and {count:,} are few for that: intervals may cover the mean less "
            f"often than they say; {max(needed.values()):.2g} replications or more would do."
        )
    if alike:
        notes.append(f"All {count:,} replications of {_listed(alike)} are the same: an interval without a width says nothing about what is rare.")  # fmt: skip
    return notes


def _listed(names: Collection[str]) -> str:
    return ", ".join(list(names)[:6]) + (", .." if len(names) > 6 else "")


def variance_interval(samples: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Return variances over the first axis and half widths of their confidence intervals, for many replications.

    The variance of the sample variance is (m4 - (n - 3) / (n - 1) m2^2) / n, with the central moments m2 and m4.
    """
    count = len(samples)
    variance = samples.var(axis=0, ddof=1)
    fourth = ((samples - samples.mean(axis=0)) ** 4).mean(axis=0)
    spread = np.maximum(fourth - (count - 3) / (count - 1) * variance**2, 0) / count
    return variance, float(stdtrit(count - 1, 0.5 + confidence / 2)) * np.sqrt(spread)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Return the estimate of first minus second, from the differences of their replications one by one.

    With the same seed both saw the same randomness, and the intervals are narrower than those of independent simulations.

    Raises
    ------
    ModelError
        If they have no measure in common, or not the same number of replications.
    """
    if first.replications != second.replications:
        raise ModelError(f"the estimates have {first.replications} and {second.replications} replications; allowed are as many.")  # fmt: skip
    shared = [name for name in first.samples if name in second.samples]
    samples = {
        name: first.samples[name] - second.samples[name]
        for name in shared
        if first.samples[name].shape == second.samples[name].shape
    }
    if not samples:
        raise ModelError("the estimates have no measure in common; allowed are two of the same model.")
    paths, times = {}, None
    for name, one in first.trajectories.items():
        other = second.trajectories.get(name)
        if other is None or one.samples is None or other.samples is None:
            continue
        if one.samples.shape == other.samples.shape and np.array_equal(one.times, other.times):
            paths[name], times = one.samples - other.samples, one.times
    return Estimate.from_samples(
        samples,
        times=times,
        paths=paths,
        confidence=first.confidence,
        title="Difference of two simulations",
        run=first.run,
        replications=first.replications,
        warm_up=first.warm_up,
        seed=first.seed,
        events=first.events + second.events,
        notes=tuple(dict.fromkeys([*first.notes, *second.notes])),
    )
