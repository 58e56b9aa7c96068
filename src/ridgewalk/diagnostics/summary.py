"""A table of the posterior with what is known of its accuracy, one row per parameter or per leaf."""

import jax
import numpy as np
import pandas as pd

from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.mixing import classical_r_hat, ess, r_hat, standard_error
from ridgewalk.diagnostics.select import Coordinates, coordinates, dimension, kept_by_chains, load_leaf, weights
from ridgewalk.diagnostics.turns import separated
from ridgewalk.ravel import leaf_names

COLUMNS = ["mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]


class SummaryTable(pd.DataFrame):  # type: ignore[misc]
    """A data frame that is printed with all its columns."""

    @property
    def _constructor(self) -> type["SummaryTable"]:
        return SummaryTable

    def __repr__(self) -> str:
        """Rows as pandas prints them, however wide the screen is."""
        with pd.option_context("display.max_columns", None, "display.expand_frame_repr", False):
            return super().__repr__()


def summary(result: Draws, *, max_parameters: int = 1000, seed: int = 0) -> SummaryTable:
    """Mean, standard deviation, their Monte Carlo errors, effective draws and R̂ of every parameter.

    Mean and sd weight draws by their step size; ESS and R̂ are ArviZ's, of the draws as they are, and errors follow
    from them: mcse_mean = sd / √ESS; for ESS, HAMCMC's M positions in turn are chains. Chains that diverged are left
    out.
    With more than `max_parameters` parameters there is one row per leaf: the mean of its means, the root mean square
    of its sds, and the worst errors, ESS and R̂ of `looked_at` of its parameters, taken at random.
    A run that kept moments only has means, sds and, from two chains on, R̂ by its classical formula.
    After pruning, `pruned` counts the chains that have pruned a parameter (of a leaf, the parameters that a chain has
    pruned, on average); errors, ESS and R̂ are of the chains that have kept it.
    """
    if not isinstance(max_parameters, int) or max_parameters < 1:
        raise ValueError(f"max_parameters: {max_parameters!r} is not a positive number of rows")
    if result.positions is None:
        return _of_moments(result, max_parameters)
    parts, masks = coordinates(result, max_parameters, seed), kept_by_chains(result)
    if dimension(result) <= max_parameters:
        rows = [row for part in parts for row in _rows(result, part, masks)]
        table = SummaryTable(rows, index=[label for part in parts for label in part.labels], columns=COLUMNS)
        if masks is not None:
            table["pruned"] = np.concatenate([np.sum(~masks[part.name], axis=0) for part in parts])
        return table
    return _noted(SummaryTable([_leaf_row(result, part, masks) for part in parts], index=[part.name for part in parts]))


def _rows(result: Draws, part: Coordinates, masks: dict[str, np.ndarray] | None) -> list[list[float]]:
    """One row for each coordinate."""
    kept = np.ones((part.values.shape[0], len(part.where)), bool) if masks is None else masks[part.name][:, part.where]
    return [_row(result, part.values[:, :, i], kept[:, i]) for i in range(len(part.where))]


def _moments(result: Draws, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and variance of (chain, draw, …) over chains and draws."""
    share = weights(result)
    mean = np.tensordot(share, values.mean(0), axes=(0, 0))
    return mean, np.tensordot(share, ((values - mean) ** 2).mean(0), axes=(0, 0))


def _row(result: Draws, values: np.ndarray, kept: np.ndarray) -> list[float]:
    """One parameter's numbers from (chain, draw); their accuracy as far as chains have `kept` it."""
    mean, variance = _moments(result, values)
    if not kept.any():
        return [float(mean), float(np.sqrt(variance)), *[float("nan")] * 5]
    share, moving = weights(result), values[kept]
    even = 1 / (len(share) * float((share**2).sum()))  # what unequal weights leave of the draws (Kish)
    centre, spread = _moments(result, moving)
    sd = float(np.sqrt(spread))
    apart = separated(result, moving)
    error = sd / np.sqrt(even * ess(apart, "mean"))
    # By the delta method sd's error is that of the centred squares over 2 sd.
    squares = (apart - centre) ** 2
    sd_error = standard_error(squares) / np.sqrt(even) / (2 * sd) if sd > 0 else float("nan")
    accuracy = [error, sd_error, ess(apart), ess(apart, "tail"), r_hat(moving)]
    return [float(mean), float(np.sqrt(variance)), *accuracy]


def _leaf_row(result: Draws, part: Coordinates, masks: dict[str, np.ndarray] | None) -> dict[str, float]:
    """A leaf's numbers: means and sds of all its parameters, the rest the worst of those looked at."""
    leaves = dict(zip(leaf_names(result.positions), jax.tree.leaves(result.positions), strict=True))
    mean, variance = _moments(result, load_leaf(result, leaves[part.name]).astype(float))
    rows = np.array(_rows(result, part, masks))
    worst = {name: _extreme(rows[:, COLUMNS.index(name)], low=name.startswith("ess")) for name in COLUMNS[2:]}
    size, seen = int(np.prod(part.shape)), len(part.where)
    row = {"parameters": size, "looked_at": seen, "mean": mean.mean(), "sd": np.sqrt(variance.mean()), **worst}
    return row if masks is None else row | {"pruned": _pruned(masks[part.name])}


def _pruned(kept: np.ndarray) -> float:
    """How many parameters of a leaf a chain has pruned, on average."""
    return float(np.mean(np.sum(~kept, axis=1)))


def _extreme(values: np.ndarray, low: bool) -> float:
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return float("nan")
    return float(finite.min() if low else finite.max())


def _noted(table: SummaryTable) -> SummaryTable:
    table.attrs["note"] = (
        "one row per leaf: mean and sd over all its parameters, mcse, ess and r_hat the worst of `looked_at` of them, "
        "taken at random; raise max_parameters for a row per parameter"
    )
    return table


def _of_moments(result: Draws, max_parameters: int) -> SummaryTable:
    """Mean, sd and R̂ = √((n−1)/n + B/W) from every chain's running mean and variance."""
    kept, alive, n = result.moments, result.alive, result.draws
    if kept is None:
        raise ValueError("positions: this run kept neither draws nor moments; use keep='draws' or keep='moments'")
    names, frames, masks = leaf_names(kept.mean), [], kept_by_chains(result)
    each = zip(names, jax.tree.leaves(kept.mean), jax.tree.leaves(kept.squares), strict=True)
    whole = dimension(result) > max_parameters
    for name, means, squares in each:
        shape = means.shape[1:]
        centres = np.asarray(means, float)[alive].reshape(int(alive.sum()), -1)
        spreads = (np.asarray(squares, float)[alive] / float(kept.weight)).reshape(centres.shape)
        share = None if masks is None else masks[name]
        hats = classical_r_hat(centres, spreads, n, share)
        variance = spreads.mean(0) + centres.var(0)
        if whole:
            row = {"parameters": variance.size, "mean": centres.mean(), "sd": np.sqrt(variance.mean())}
            row |= {"r_hat": _extreme(hats, low=False)} | ({} if share is None else {"pruned": _pruned(share)})
            frames.append(SummaryTable([row], index=[name]))
        else:
            labels = Coordinates(name, shape, np.arange(variance.size), centres).labels
            columns = {"mean": centres.mean(0), "sd": np.sqrt(variance), "r_hat": hats}
            columns |= {} if share is None else {"pruned": np.sum(~share, axis=0)}
            frames.append(SummaryTable(columns, index=labels))
    table = pd.concat(frames)
    table.attrs["note"] = "from running moments: effective draws are not known, and R-hat is the classical one"
    return table
