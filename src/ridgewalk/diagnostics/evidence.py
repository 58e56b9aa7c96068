"""The numbers that a check is read from, each computed once."""

import math
from typing import NamedTuple

import jax
import numpy as np

from ridgewalk.data import Batches
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.mixing import classical_r_hat, ess, r_hat
from ridgewalk.diagnostics.noise_share import gradient_noise_share
from ridgewalk.diagnostics.operators import PairShares, Stiffness, is_finite, pair_shares, stability_share, stiffness
from ridgewalk.diagnostics.select import (
    FEWEST_DRAWS,
    Coordinates,
    coordinates,
    dimension,
    kept_by_chains,
    living_info,
    living_states,
)
from ridgewalk.diagnostics.temperature import configurational_series, has_momentum
from ridgewalk.diagnostics.turns import separated
from ridgewalk.ravel import leaf_names
from ridgewalk.target import Density

PARAMETERS = 100
"""How many parameters, at random, effective draws and R̂ are computed of."""

GRADIENTS = 400
"""Gradients for the configurational temperature."""

NUMBERS = 2**25
"""Numbers that the draws for it may hold."""

ALL_EXAMPLES = 10_000
"""Up to so many examples gradients are over all of them, above over so many fresh ones for each draw."""

FRESH_EXAMPLES = 4096


class Worst(NamedTuple):
    """The parameter that comes out worst, and how."""

    label: str
    value: float


class Evidence(NamedTuple):
    """What was measured; None where it could not be."""

    fewest: Worst | None
    disagreement: Worst | None
    stuck: tuple[str, ...]
    """Parameters that never changed."""
    curvature: Stiffness | None
    stability: float
    noise_share: float
    pairs: PairShares
    configurational: np.ndarray | None
    """(θ − θ̄)·∇U / d, (chain, draw)."""
    kinetic: np.ndarray | None
    notes: tuple[str, ...]

    def numbers(self) -> dict[str, float]:
        """The numbers by name, for a reader."""
        found = {
            "fewest effective draws": self.fewest.value if self.fewest else math.nan,
            "largest R-hat": self.disagreement.value if self.disagreement else math.nan,
            "step size / stable one": self.stability,
            "gradient noise share": self.noise_share,
            "damped pairs": self.pairs.damped if self.pairs.pairs else math.nan,
            "rejected pairs": self.pairs.rejected if self.pairs.pairs else math.nan,
            "configurational temperature": _mean(self.configurational),
            "kinetic temperature": _mean(self.kinetic),
        }
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _mean(values: np.ndarray | None) -> float:
    return math.nan if values is None else float(values.mean())


def _mixing(result: Draws) -> tuple[Worst | None, Worst | None, tuple[str, ...]]:
    """Fewest effective draws, largest R̂, and parameters that stood still."""
    sizes, hats, stuck = [], [], []
    for part in coordinates(result, PARAMETERS):
        for i, label in enumerate(part.labels):
            values = part.values[:, :, i]
            if result.sampler.pruning is not None:
                values = values[np.any(values != 0, axis=1)]  # of the chains that have kept it
                if not len(values):
                    continue
            if np.all(values == values[:, :1]):
                stuck.append(label)
                continue
            sizes.append(Worst(label, ess(separated(result, values))))
            hats.append(Worst(label, r_hat(values)))
    sizes = [worst for worst in sizes if math.isfinite(worst.value)]
    hats = [worst for worst in hats if math.isfinite(worst.value)]
    fewest = min(sizes, key=lambda worst: worst.value, default=None)
    return fewest, max(hats, key=lambda worst: worst.value, default=None), tuple(stuck)


def _moment_disagreement(result: Draws) -> Worst | None:
    """The largest classical R̂ from running moments."""
    if result.moments is None or result.draws < FEWEST_DRAWS or result.alive.sum() < 2:
        return None
    alive, kept, found, masks = result.alive, result.moments, [], kept_by_chains(result)
    names = leaf_names(kept.mean)
    for name, means, squares in zip(names, jax.tree.leaves(kept.mean), jax.tree.leaves(kept.squares), strict=True):
        centres, spreads = (np.asarray(x, float)[alive].reshape(int(alive.sum()), -1) for x in (means, squares))
        share = None if masks is None else masks[name]
        hats = classical_r_hat(centres, spreads / float(kept.weight), result.draws, share)
        if np.isfinite(hats).any():
            where = np.array([np.nanargmax(np.where(np.isfinite(hats), hats, np.nan))])
            found.append(Worst(Coordinates(name, means.shape[1:], where, centres).labels[0], float(hats[where[0]])))
    return max(found, key=lambda worst: worst.value, default=None)


def _examples(result: Draws) -> int | None:
    """How many examples a gradient takes; None for all."""
    target = result.estimator.target
    if isinstance(target, Density):
        return None
    return None if target.size <= ALL_EXAMPLES and not isinstance(target.data, Batches) else FRESH_EXAMPLES


def gather(result: Draws) -> Evidence:
    """Measure all that can be measured."""
    notes = []
    fewest: Worst | None = None
    disagreement: Worst | None = None
    stuck: tuple[str, ...] = ()
    configurational = None
    if result.positions is None:
        notes.append("the draws were not kept, so effective draws and temperature were not looked at")
        disagreement = _moment_disagreement(result)
    elif result.draws < FEWEST_DRAWS:
        notes.append(f"with {result.draws} draws of each chain, mixing and temperature were not looked at")
    else:
        fewest, disagreement, stuck = _mixing(result)
        d = dimension(result)
        if d > PARAMETERS:
            notes.append(f"effective draws and R-hat are of {PARAMETERS} of {d:,} parameters, taken at random")
        masks = [np.asarray(state.mask) for state in result.final_states if state.mask is not None]
        if any(np.any(mask != masks[0]) for mask in masks):
            notes.append("each chain is pruned on its own, so R-hat compares posteriors of different weights")
        most = max(20, min(GRADIENTS, NUMBERS // d))
        series = configurational_series(result, most, _examples(result))
        if series.size:
            configurational = series
        else:
            notes.append("fewer draws than chains that take turns in them, so the temperature was not looked at")
    sound = result.draws > 0 and all(is_finite(state) for state in living_states(result))
    curvature = stiffness(result) if sound else None
    kinetic = living_info(result, "temperature") if has_momentum(result) and result.draws >= FEWEST_DRAWS else None
    return Evidence(
        fewest=fewest,
        disagreement=disagreement,
        stuck=stuck,
        curvature=curvature,
        stability=stability_share(result, curvature) if curvature else math.nan,
        noise_share=gradient_noise_share(result) if sound else math.nan,
        pairs=pair_shares(result),
        configurational=configurational,
        kinetic=kinetic,
        notes=tuple(notes),
    )
