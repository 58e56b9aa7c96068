"""Networks and samplers by name, so that settings can be written in a file or on a command line."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ridgewalk.kernel import Sampler
from ridgewalk.samplers import hamcmc, hasgld_sa, pruned, psgld, sghmc, sgld, sgnht
from ridgewalk.surrogates.mlp import mlp
from ridgewalk.surrogates.model import Network
from ridgewalk.surrogates.networks import permeability_network, source_network

NETWORKS: dict[str, Callable[[], Network]] = {
    "mlp": mlp,
    "permeability": permeability_network,
    "source": source_network,
}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "hamcmc": hamcmc,
    "hasgld_sa": hasgld_sa,
    "psgld": psgld,
    "sghmc": sghmc,
    "sgld": sgld,
    "sgnht": sgnht,
}


@cache
def _named_network(name: str) -> Network:
    """One object per name, so that fits of the same sizes share what JAX compiled."""
    return NETWORKS[name]()


def network_of(network: Any) -> Network:
    """A network from its name, or as it is."""
    if isinstance(network, str):
        if network not in NETWORKS:
            raise ValueError(f"network: {network!r} is unknown; use one of {_listed(NETWORKS)}, or a Network")
        return _named_network(network)
    if not hasattr(network, "build"):
        raise ValueError(
            f"network: {type(network).__name__} is not a Network; use one of {_listed(NETWORKS)}, or wrap it in "
            "EquinoxNetwork, LinenNetwork, NnxNetwork or FunctionNetwork (ridgewalk.surrogates.adapters)"
        )
    return network


def sampler_of(sampler: Any) -> Sampler:
    """A sampler from its recipe's name, or as it is."""
    if isinstance(sampler, str):
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler: {sampler!r} is unknown; use one of {_listed(SAMPLERS)}, or a Sampler")
        return SAMPLERS[sampler]()
    if not isinstance(sampler, Sampler):
        hint = "; call it: ridgewalk.sgld()" if callable(sampler) else ""
        raise ValueError(f"sampler: {sampler!r} is not a ridgewalk.Sampler{hint}; or use one of {_listed(SAMPLERS)}")
    return sampler


def sparse_sampler(sampler: Sampler, sparsity: float, burn_in: int) -> Sampler:
    """The sampler with pruning in the first three quarters of the burn-in; as it is for a sparsity of 0."""
    number = isinstance(sparsity, int | float | np.number) and not isinstance(sparsity, bool)
    if not (number and 0 <= sparsity < 1):
        raise ValueError(f"sparsity: {sparsity!r} is no share of the weights; use a number in [0, 1), such as 0.7")
    if sparsity == 0:
        return sampler
    if sampler.pruning is not None:
        raise ValueError(f"sparsity: {sparsity} with a sampler that is pruned already; leave one of them out")
    if burn_in < 2:
        raise ValueError(f"burn_in: {burn_in} steps leave no time to prune in; use 100 or more with sparsity")
    return pruned(sampler, float(sparsity), stop=max(1, 3 * burn_in // 4))


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names)))
