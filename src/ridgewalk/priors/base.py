"""Priors: the interface of adaptive priors; Gaussian, Laplace and Student t priors without hyper-parameters; and priors
that differ by leaf of the position: for weights and biases, for layers, for the noise scale.
"""

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ridgewalk._pytree import leaf_names, pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk._validation import check_positive


class Residuals(NamedTuple):
    """Residual statistics for a noise scale that the likelihood shares with the prior."""

    squares: Scalar
    """Σ r² over all data, or its estimate (N/n) Σ r² from a batch."""
    number: int
    """The number of residuals of all data."""


class AdaptivePrior(ABC):
    """log p(θ | η) whose hyper-parameters η are learnt by each chain; the prior's state holds η and its statistics.

    The state is part of each chain's state (`State.prior`), so adaptive priors compose with every sampler and every
    gradient estimator, and are checkpointed.
    """

    @abstractmethod
    def init(self, position: PyTree, residuals: Residuals | None) -> Any:
        """The state before the first step; `residuals` only where the likelihood shares the prior's noise."""

    @abstractmethod
    def log_density(self, state: Any, position: PyTree) -> Scalar:
        """log p(θ | η) at the state's η."""

    @abstractmethod
    def update(
        self, state: Any, position: PyTree, residuals: Residuals | None, step: Scalar, kept: PyTree | None = None
    ) -> Any:
        """The state after step number `step` (from 1).

        `position` is where the step started, independent of the step's batch, which `residuals` come from. In a pruned
        chain `kept` has the structure of the position, ones for kept parameters and zeros for pruned ones, which must
        not enter the statistics.
        """

    @property
    @abstractmethod
    def has_noise(self) -> bool:
        """Whether there is one σ that a likelihood can share."""

    @abstractmethod
    def noise(self, state: Any) -> Scalar:
        """That σ."""

    @abstractmethod
    def inclusion_probabilities(self, state: Any, position: PyTree) -> PyTree:
        """P(γ = 1) of every parameter as learnt so far, in the position's structure."""


Prior: TypeAlias = Callable[[PyTree], Any] | AdaptivePrior


def total(position: PyTree, log_density: Callable[[jax.Array], jax.Array]) -> Scalar:
    """Σ of an elementwise log density over all parameters, in the position's dtype."""
    parts = [jnp.sum(log_density(leaf)) for leaf in jax.tree.leaves(position)]
    return functools.reduce(operator.add, parts)


def absolute(x: jax.Array) -> jax.Array:
    """|x| with gradient 0 at 0, where `jnp.abs` has 1, which would push a parameter at 0 to one side."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


@pytree_dataclass
class GaussianPrior:
    """θ_j ~ N(0, scale²): log p = Σ_j −θ_j² / (2 scale²) − log(scale √(2π))."""

    scale: float

    def __post_init__(self) -> None:
        """Check the scale."""
        check_positive("scale", self.scale, "try 1.0")

    def __call__(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        return total(position, lambda x: -0.5 * (x / self.scale) ** 2 - constant)


@pytree_dataclass
class LaplacePrior:
    """θ_j ~ Laplace(0, scale): log p = Σ_j −|θ_j| / scale − log(2 scale); its standard deviation is √2 scale."""

    scale: float

    def __post_init__(self) -> None:
        """Check the scale."""
        check_positive("scale", self.scale, "try 1.0")

    def __call__(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        return total(position, lambda x: -absolute(x) / self.scale - math.log(2 * self.scale))


@pytree_dataclass
class StudentTPrior:
    """θ_j / scale ~ t_ν: log p = Σ_j −(ν+1)/2 log(1 + θ_j² / (ν scale²)) + log of the constant."""

    degrees: float
    scale: float

    def __post_init__(self) -> None:
        """Check the settings."""
        check_positive("degrees", self.degrees, "try 4.0")
        check_positive("scale", self.scale, "try 1.0")

    def __call__(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        half = (self.degrees + 1) / 2
        constant = math.lgamma(half) - math.lgamma(self.degrees / 2)
        constant -= 0.5 * math.log(self.degrees * math.pi) + math.log(self.scale)
        return total(position, lambda x: constant - half * jnp.log1p((x / self.scale) ** 2 / self.degrees))


def gaussian_prior(scale: float) -> GaussianPrior:
    """N(0, scale²) on every parameter, for use as `log_prior`."""
    return GaussianPrior(scale)


def laplace_prior(scale: float) -> LaplacePrior:
    """Laplace(0, scale) on every parameter, for use as `log_prior`: zeros at the mode, not in the draws."""
    return LaplacePrior(scale)


def student_t_prior(degrees: float, scale: float) -> StudentTPrior:
    """Student's t with `degrees` degrees of freedom on every parameter, for use as `log_prior`: heavy tails."""
    return StudentTPrior(degrees, scale)


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
