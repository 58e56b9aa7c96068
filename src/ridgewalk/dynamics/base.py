"""What dynamics are: how a chain moves, given a gradient, noise and a preconditioner."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from ridgewalk.noise import Noise
from ridgewalk.precondition.base import Operator
from ridgewalk.types import Scalar, Vector


class Move(NamedTuple):
    """A displacement, and the covector v and noise z with `displacement = G v + S z` (both 0 in `AsPrinted`)."""

    displacement: Vector
    covector: Vector
    noise: Vector
    temperature: Callable[[], Scalar]
    """The temperature this step shows: about T in a healthy chain, more where gradient noise adds to it. Computed when
    it is asked for, which is not in every step."""


class Dynamics(ABC):
    """A rule of motion; any of them takes any preconditioner, those with momentum any whose G is no function of θ."""

    noise: Noise
    temperature: float

    @property
    @abstractmethod
    def takes_correction(self) -> bool:
        """Whether adding ε T Γ to a step makes up for a G(θ); with momentum it does not."""

    @abstractmethod
    def init(self, position: Vector) -> Any:
        """What the chain carries besides its position."""

    @abstractmethod
    def origin(self, state: Any, position: Vector, step: Scalar) -> Vector:
        """The point that step number `step` leaves from."""

    @abstractmethod
    def move(
        self,
        state: Any,
        operator: Operator,
        gradient: Vector,
        noise: Vector,
        step_size: Scalar,
        step: Scalar,
        degrees: Scalar | int,
    ) -> tuple[Any, Move]:
        """The displacement of one step, without the drift correction Γ, and the state after it.

        `degrees` is the number of coordinates that move: d, or fewer where the chain is pruned.
        """

    @abstractmethod
    def arrive(self, state: Any, position: Vector, step: Scalar) -> Any:
        """The state, knowing where the step ended."""

    def restrict(self, state: Any, mask: Vector) -> Any:
        """The state with nothing in the coordinates that are pruned."""
        raise ValueError(
            f"dynamics: {type(self).__name__} have no method restrict(state, mask), which pruning needs; write one"
        )


def check_temperature(temperature: float) -> None:
    """Raise on a temperature that is no temperature."""
    if not temperature >= 0:
        raise ValueError(f"temperature: {temperature} is negative; use 1.0 for the posterior, 0 for plain descent")
