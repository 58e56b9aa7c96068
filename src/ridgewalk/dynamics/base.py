"""Dynamics: how a chain moves, given a gradient, noise and a preconditioner."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax.numpy as jnp

from ridgewalk._random import Noise
from ridgewalk._types import Scalar, Vector
from ridgewalk._validation import check_between, check_choice
from ridgewalk.preconditioners.base import Operator, StepContext


class Move(NamedTuple):
    """A displacement, and the covector v and noise z with `displacement = G v + S z` (both 0 in `AsPrinted`)."""

    displacement: Vector
    covector: Vector
    noise: Callable[[], Vector]
    temperature: Callable[[], Scalar]
    """The temperature estimate of this step: about T, more where gradient noise adds to it. Noise and temperature are
    functions, because they are not needed in every step."""


LEAST_NOISE = 0.25
"""The least part of its noise that a step injects itself, however large the gradient's noise."""


def remaining_noise(total: Scalar, of_gradient: Scalar) -> Scalar:
    """The variance to inject where the noise of the gradient already contributes to that of the step."""
    return jnp.maximum(total - of_gradient, LEAST_NOISE * total)


class Dynamics(ABC):
    """The update rule of a chain; composes with any preconditioner, with momentum with any position-independent one."""

    noise: Noise
    temperature: float

    def __post_init__(self) -> None:
        """Check temperature and noise."""
        check_between(
            "temperature", self.temperature, 0, float("inf"), "[)", "1 samples the posterior, 0 minimises the potential"
        )
        check_choice("noise", self.noise, get_args(Noise))

    @property
    @abstractmethod
    def takes_correction(self) -> bool:
        """Whether adding ε T Γ to a step accounts for a position-dependent G(θ); with momentum it does not."""

    @abstractmethod
    def init(self, position: Vector) -> Any:
        """The state besides the position: momentum, friction, earlier positions."""

    def origin(self, state: Any, position: Vector, step: Scalar) -> Vector:
        """The point that step number `step` leaves from: by default the current position."""
        return position

    @abstractmethod
    def move(self, state: Any, operator: Operator, context: StepContext) -> tuple[Any, Move]:
        """The displacement of one step, without the drift correction Γ, and the state after it."""

    def arrive(self, state: Any, position: Vector, step: Scalar) -> Any:
        """The state after the step has ended at `position`: by default unchanged."""
        return state

    def reverse(self, state: Any) -> Any:
        """The state after a step that was undone: by default unchanged, with momentum its direction is reversed."""
        return state

    def prune(self, state: Any, mask: Vector) -> Any:
        """The state with zeros in pruned parameters."""
        raise ValueError(
            f"dynamics: {type(self).__name__} has no method prune(state, mask), which pruning needs; write one"
        )
