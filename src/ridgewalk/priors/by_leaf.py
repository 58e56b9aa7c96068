"""Priors that differ by leaf of the position: for weights and biases, for layers, for the noise scale."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ridgewalk._pytree import leaf_names, pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk.priors.base import AdaptivePrior, Prior, Residuals


@pytree_dataclass
class Groups:
    """Groups of leaves, each selected by a part of the leaf's name, with their priors; `otherwise` has the rest."""

    named: tuple[tuple[str, Prior], ...]
    otherwise: Prior | None

    def split(self, position: PyTree) -> list[tuple[Prior, dict[str, Any]]]:
        """Each prior with its leaves; an error if a group is empty, or if a leaf has no prior or two."""
        leaves = dict(zip(leaf_names(position), jax.tree.leaves(position), strict=True))
        found: dict[str, dict[str, Any]] = {key: {} for key, _ in self.named}
        rest = {}
        for name, leaf in leaves.items():
            keys = [key for key in found if matches(key, name)]
            if len(keys) > 1:
                raise ValueError(f"prior_by_leaf: the leaf {name!r} belongs to {keys}; use longer names")
            if keys:
                found[keys[0]][name] = leaf
            else:
                rest[name] = leaf
        listed = ", ".join(map(repr, leaves))
        for key, members in found.items():
            if not members:
                raise ValueError(f"prior_by_leaf: no leaf is named {key!r}; the leaves are {listed}")
        if rest and self.otherwise is None:
            raise ValueError(f"otherwise: the leaves {sorted(rest)} have no prior; name them, or pass otherwise=prior")
        groups = [(prior, found[key]) for key, prior in self.named]
        return [*groups, (self.otherwise, rest)] if rest and self.otherwise is not None else groups


def matches(key: str, name: str) -> bool:
    """Whether `key` is the dotted name or whole components of it: `bias` and `layers.0` match `layers.0.bias`."""
    return f".{key}." in f".{name}."


@pytree_dataclass
class PriorByLeaf:
    """The sum of the log densities of all groups, none of which is adaptive."""

    groups: Groups

    def __call__(self, position: PyTree) -> Any:
        """log p(θ)."""
        return sum(prior(leaves) for prior, leaves in self.groups.split(position))  # type: ignore[operator]


@pytree_dataclass
class AdaptivePriorByLeaf(AdaptivePrior):
    """The sum of the log densities of all groups; its state has one item per group, None if not adaptive."""

    groups: Groups

    @property
    def _adaptive(self) -> list[AdaptivePrior]:
        priors = [*(prior for _, prior in self.groups.named), self.groups.otherwise]
        return [prior for prior in priors if isinstance(prior, AdaptivePrior)]

    @property
    def has_noise(self) -> bool:
        """Whether exactly one group has a σ."""
        return sum(prior.has_noise for prior in self._adaptive) == 1

    def noise(self, state: tuple[Any, ...]) -> Scalar:
        """σ of the group that has one."""
        priors = [*(prior for _, prior in self.groups.named), self.groups.otherwise]
        pairs = zip(priors, state, strict=False)  # `otherwise` has no state if no leaf remains for it
        return next(p.noise(s) for p, s in pairs if isinstance(p, AdaptivePrior) and p.has_noise)

    def init(self, position: PyTree, residuals: Residuals | None) -> tuple[Any, ...]:
        """The states of the groups."""
        return tuple(
            prior.init(leaves, residuals) if isinstance(prior, AdaptivePrior) else None
            for prior, leaves in self.groups.split(position)
        )

    def log_density(self, state: tuple[Any, ...], position: PyTree) -> Scalar:
        """log p(θ | η)."""
        parts = [
            prior.log_density(own, leaves) if isinstance(prior, AdaptivePrior) else prior(leaves)
            for own, (prior, leaves) in zip(state, self.groups.split(position), strict=True)
        ]
        return sum(parts[1:], start=jnp.asarray(parts[0]))

    def update(
        self,
        state: tuple[Any, ...],
        position: PyTree,
        residuals: Residuals | None,
        step: Scalar,
        kept: PyTree | None = None,
    ) -> tuple[Any, ...]:
        """Update the state of every adaptive group from its own leaves."""
        groups = self.groups.split(position)
        masks = [None] * len(groups) if kept is None else [leaves for _, leaves in self.groups.split(kept)]
        return tuple(
            prior.update(own, leaves, residuals, step, mask) if isinstance(prior, AdaptivePrior) else None
            for own, (prior, leaves), mask in zip(state, groups, masks, strict=True)
        )

    def inclusion_probabilities(self, state: tuple[Any, ...], position: PyTree) -> PyTree:
        """ρ of each adaptive group; 1 for leaves of the other groups."""
        found: dict[str, Any] = {}
        for own, (prior, leaves) in zip(state, self.groups.split(position), strict=True):
            if isinstance(prior, AdaptivePrior):
                found |= prior.inclusion_probabilities(own, leaves)
            else:
                found |= {name: jnp.ones_like(leaf) for name, leaf in leaves.items()}
        return jax.tree.unflatten(jax.tree.structure(position), [found[name] for name in leaf_names(position)])


def prior_by_leaf(groups: Mapping[str, Prior], otherwise: Prior | None = None) -> PriorByLeaf | AdaptivePriorByLeaf:
    """Assign priors to leaves by name (as in `result.summary()`), for use as `log_prior`.

    A leaf's name is its dotted path. A key matches every leaf whose path equals it or contains it as consecutive whole
    components: with leaves `layers.0.weight`, `layers.0.bias` and `layers.1.bias`, "bias" matches both biases and
    "layers.0" the first layer. A key that matches no leaf, a leaf that matches two keys, and a leaf without a prior are
    errors.

        rw.prior_by_leaf({"bias": rw.gaussian_prior(10.0)}, otherwise=rw.spike_and_slab())

    The prior of a group is called with all its leaves, as a dict by name: one `spike_and_slab` has one σ and one δ.
    """
    if not groups:
        raise ValueError("groups: it is empty; name at least one leaf, or pass the prior itself")
    for key, prior in [*groups.items(), *([("otherwise", otherwise)] if otherwise is not None else [])]:
        if not isinstance(key, str) or not (callable(prior) or isinstance(prior, AdaptivePrior)):
            raise ValueError(
                f"groups: {key!r}: {prior!r} is not a name and a prior; use {{'bias': gaussian_prior(10)}}"
            )
    made = Groups(tuple(groups.items()), otherwise)
    adaptive = any(isinstance(prior, AdaptivePrior) for prior in [*groups.values(), otherwise])
    return AdaptivePriorByLeaf(made) if adaptive else PriorByLeaf(made)
