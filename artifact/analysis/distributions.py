"""Student's t and noncentral t, from `scipy.special` alone (`scipy.stats` takes 1 s to import).

Every result is cached: a campaign asks for the same few degrees of freedom again and again.
"""

from __future__ import annotations

from functools import lru_cache

from scipy import special


@lru_cache(maxsize=4096)
def t_critical(level: float, df: float) -> float:
    """Two-sided critical value: `P(|T| <= t) = level` for Student's t with `df` > 0."""
    return float(special.stdtrit(df, 0.5 + level / 2))


def t_upper_tail(t: float, df: float) -> float:
    """`P(T > t)` for Student's t with `df` > 0."""
    return float(special.stdtr(df, -t))


@lru_cache(maxsize=4096)
def detectable_shift(df: float, level: float, power: float) -> float:
    """Smallest shift, in standard errors, that a two-sided t test finds with probability `power`.

    The root in the noncentrality of `P(T' > t_critical(level, df)) = power`, T' noncentral t. A
    rejection on the wrong side does not count as finding it (at 80 % power its probability is
    below 1e-6, and scipy cannot compute it for one degree of freedom).
    """
    critical = t_critical(level, df)
    low, high = 0.0, 1.0
    while special.nctdtr(df, high, critical) > 1 - power:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        missed = special.nctdtr(df, middle, critical) > 1 - power
        low, high = (middle, high) if missed else (low, middle)
    return high
