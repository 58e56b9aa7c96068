"""What dynamics are: how a chain moves, given a gradient, noise and a preconditioner."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from ridgewalk._random import Noise
from ridgewalk._types import Scalar, Vector
from ridgewalk._validation import check_between, check_choice
from ridgewalk.precondition.base import Operator


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

    def check_common(self) -> None:
        """Raise if the temperature is negative or NaN, or the noise unknown."""
        check_between(
            "temperature", self.temperature, 0, float("inf"), "[)", "1 samples the posterior, 0 minimises the potential"
        )
        check_choice("noise", self.noise, get_args(Noise))

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
