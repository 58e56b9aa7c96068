"""What a preconditioner is: an operator that the chain moves with, and the rule that refines it."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import every
from ridgewalk._types import GradientAt, Mask, Scalar, Unravel, Vector


class Operator(Protocol):
    """A positive definite matrix G with a factor S, `S Sᵀ = G`, known by what it does to vectors.

    Every preconditioner's state is one. `multiply` and `factor` must agree: the noise of a step has covariance
    G only if they do.
    """

    def multiply(self, vector: Vector) -> Vector:
        """G v."""

    def factor(self, noise: Vector) -> Vector:
        """S z."""

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z, in as few passes over the memory as the form allows."""


class Departure(NamedTuple):
    """What is known before a step: where it starts and the gradient it will use.

    `gradient` is the estimate of ∇U, `gradient_at` is ∇Ũ on the batch of this step; steps count from 1.
    Where the chain is pruned, `mask` says which coordinates are kept, and gradients are zero in all others.
    """

    step: Scalar
    position: Vector
    gradient: Vector
    gradient_at: GradientAt
    mask: Mask = None


class Transition(NamedTuple):
    """One step of a chain, as shown to a preconditioner that learns from it.

    `after − before = G covector + S noise` with the operator that made the step, up to a drift correction.
    `gradient_at` and `gradient` are ∇Ũ on the batch of this step, so differences of them are curvature.
    """

    step: Scalar
    before: Vector
    after: Vector
    gradient: Vector
    covector: Vector
    noise: Vector
    gradient_at: GradientAt


class Lesson(NamedTuple):
    """What a person would want to know about one update of a preconditioner."""

    damping: Scalar
    """θ_d of Powell's damping: 1 where the newest pair was used as it was seen."""
    rejected: Scalar
    """Whether the newest pair was not finite, or the chain had not moved, and the pair was left out."""


def no_lesson(like: jax.Array) -> Lesson:
    """Nothing was learnt in this step; numbers have the dtype of `like`."""
    return Lesson(jnp.ones((), like.dtype), jnp.zeros((), bool))


class Choice(ABC):
    """What a sampler is given: a preconditioner, or a way to choose one when the position is known."""

    @abstractmethod
    def specialise(self, dimension: int, unravel: Unravel) -> "Preconditioner":
        """The preconditioner for d parameters of the user's structure; raises where it does not fit."""


class Preconditioner(Choice):
    """The rule: how the operator starts, what it is before a step, and what a step teaches it."""

    @abstractmethod
    def init(self, position: Vector, gradient_at: GradientAt) -> Any:
        """The first operator; `gradient_at` is ∇Ũ on a sketch of the data."""

    @abstractmethod
    def prepare(self, operator: Any, departure: Departure) -> Any:
        """The operator for the step about to be made."""

    @abstractmethod
    def correction(self, operator: Any) -> Vector | None:
        """Γ_i = Σ_j ∂G_ij/∂θ_j, or None where G does not depend on the position."""

    @abstractmethod
    def learn(self, operator: Any, transition: Transition) -> tuple[Any, Lesson]:
        """The operator after a step."""

    @property
    def learner(self) -> "Preconditioner":
        """The rule that learns from steps: itself, or the one that it wraps."""
        return self

    def restrict(self, operator: Any, mask: Vector, position: Vector, gradient_at: GradientAt) -> Any:
        """The operator on the coordinates in `mask`: it maps vectors that are zero elsewhere to such vectors, with
        `S Sᵀ = G` among them. What it learnt where other coordinates moved too must go, or be seen anew with
        `gradient_at`, which is ∇Ũ at pruned positions, zero in pruned coordinates.
        """
        raise ValueError(
            f"preconditioner: {type(self).__name__} has no method restrict(operator, mask, position, gradient_at), "
            "which pruning needs; write one (it may return a diagonal operator as it is)"
        )


class Settling(Preconditioner):
    """For preconditioners that learn from steps: G moves ever less, and is no function of the position."""

    @property
    @abstractmethod
    def interval(self) -> int:
        """Steps from one update to the next."""

    @abstractmethod
    def update(self, operator: Any, transition: Transition) -> tuple[Any, Lesson]:
        """The operator after a step that it learns from."""

    def prepare(self, operator: Any, departure: Departure) -> Any:
        """The operator as it is."""
        return operator

    def correction(self, operator: Any) -> None:
        """No correction: G does not depend on the position."""
        return

    def learn(self, operator: Any, transition: Transition) -> tuple[Any, Lesson]:
        """An update when it is due."""
        nothing = operator, no_lesson(transition.before)
        gradient_at = transition.gradient_at

        def update(kept: tuple[Any, Lesson], arrays: Any) -> tuple[Any, Lesson]:
            return self.update(kept[0], Transition._make((*arrays, gradient_at)))

        return every(self.interval, transition.step, update, nothing, transition[:-1])


class Unchanging(Preconditioner):
    """For preconditioners that neither choose a form, nor look ahead, nor learn from steps."""

    def specialise(self, dimension: int, unravel: Unravel) -> "Preconditioner":
        """Itself."""
        return self

    def prepare(self, operator: Any, departure: Departure) -> Any:
        """The operator as it is."""
        return operator

    def correction(self, operator: Any) -> None:
        """No correction: G does not depend on the position."""
        return

    def learn(self, operator: Any, transition: Transition) -> tuple[Any, Lesson]:
        """The operator as it was."""
        return operator, no_lesson(transition.before)
