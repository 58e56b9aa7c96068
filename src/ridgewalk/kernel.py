"""A sampler is dynamics × preconditioner × gradient estimator; here they become one step."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import when
from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._random import draw_noise
from ridgewalk._step_count import StepCount
from ridgewalk._types import GradientAt, Key, Mask, PyTree, Scalar, Vector
from ridgewalk.dynamics.base import Dynamics, Move
from ridgewalk.gradients import GradientEstimator, as_estimator, with_prior
from ridgewalk.precondition.base import Choice, Departure, Preconditioner, Transition
from ridgewalk.pruning import Pruning, apply_mask
from ridgewalk.ravel import Layout, layout_of
from ridgewalk.target import Target


class State(NamedTuple):
    """All that the next step of a chain needs."""

    step: StepCount
    """How many steps were made; common to all chains of a run."""
    position: PyTree
    """θ, in the user's structure."""
    dynamics: Any
    """What the dynamics carry: momentum, friction, earlier positions."""
    preconditioner: Any
    """The operator G, with what it has learnt."""
    estimator: Any
    """What the gradient estimator carries: SVRG's anchor."""
    prior: Any = None
    """What an adaptive prior has learnt; None for a plain one."""
    mask: Mask = None
    """Which coordinates of the flat position a pruned chain has kept; None without pruning."""


class Info(NamedTuple):
    """What a person would look at in one step."""

    potential: Scalar
    """Ũ at the point the step left from, on the step's batch."""
    gradient_norm: Scalar
    noise_norm: Scalar
    """Length of the step's noise in whitened coordinates; with momentum, of the whole step."""
    temperature: Scalar
    """The temperature of the positions that the step shows: T + O(ε), more where gradient noise adds to it."""
    damping: Scalar
    rejected: Scalar


class Kernel(NamedTuple):
    """One chain's transition, usable without the runner.

    `init(position)` gives a state; `step(key, state, batch, step_size)` the next one and what happened. `step` is
    `advance` on the noise that `draw` makes of the key: the runner draws for many steps at once. `advance` also takes
    whether the step is looked at; where it is not, norms and temperature are 0, but NaN tells of a bad gradient.
    """

    init: Callable[[PyTree], State]
    step: Callable[[Key, State, PyTree, Scalar | float], tuple[State, Info]]
    draw: Callable[[Key, PyTree], Vector]
    advance: Callable[..., tuple[State, Info]]


@pytree_dataclass
class Sampler:
    """Dynamics and a preconditioner; either can be exchanged without touching the other, and any can be `pruned`."""

    dynamics: Dynamics = array_field()
    preconditioner: Choice = array_field()
    pruning: Pruning | None = array_field(default=None)


class _Look(NamedTuple):
    """What is computed for people to look at, and by no step needed."""

    gradient_norm: Scalar
    noise_norm: Scalar
    temperature: Scalar


def _look(due: Scalar | None, gradient: Vector, move: Move) -> _Look:
    """Norms and temperature where `due`; else zeros, or NaN where the gradient is not finite.

    The reductions cost a step of 50 µs about 1 %; whether all is finite is a single one.
    """

    def all_of_it() -> _Look:
        return _Look(jnp.linalg.norm(gradient), jnp.linalg.norm(move.noise), move.temperature())

    def nothing() -> _Look:
        zero = jnp.zeros((), gradient.dtype)
        return _Look(jnp.where(jnp.all(jnp.isfinite(gradient)), zero, jnp.nan), zero, zero)

    return all_of_it() if due is None else jax.lax.cond(due, all_of_it, nothing)


class _Event(NamedTuple):
    """What happens at the end of a step in which weights are pruned."""

    dynamics: Dynamics
    preconditioner: Preconditioner
    pruning: Pruning
    form: Layout
    gradient_at: GradientAt

    def prune(self, chain: tuple[Vector, Mask, Any, Any], step: Scalar) -> tuple[Vector, Mask, Any, Any]:
        """Position, mask, and the states of dynamics and preconditioner, with fewer weights."""
        flat, before, moved, operator = chain
        if before is None:
            raise ValueError("state: it has no mask, so it is not of a pruned sampler; start from this kernel's init")
        mask = self.pruning.update_mask(self.form, flat, before, step)
        flat = apply_mask(flat, mask)
        operator = self.preconditioner.restrict(operator, mask, flat, lambda x: apply_mask(self.gradient_at(x), mask))
        return flat, mask, self.dynamics.restrict(moved, mask), operator


def _check_correction(dynamics: Dynamics, preconditioner: Preconditioner, operator: Any) -> None:
    if preconditioner.correction(operator) is not None and not dynamics.takes_correction:
        raise ValueError(
            f"preconditioner: {type(preconditioner).__name__} depends on the position and needs the correction Γ, "
            f"which {type(dynamics).__name__} dynamics cannot use; take Langevin dynamics, or a G that settles"
        )


def build_kernel(sampler: Sampler, target: Target | GradientEstimator, layout: Layout | None = None) -> Kernel:
    """The kernel of a sampler on a target, or on a gradient estimator such as `control_variates(target, …)`.

    Step sizes follow the convention of `Langevin`: ε before the gradient, 2ε as the noise's variance.
    With a `layout`, the position of the states that `advance` takes and gives is the flat vector: a loop that keeps it
    so saves two copies of all parameters a step.
    """
    estimator = as_estimator(target)
    dynamics, pruning = sampler.dynamics, sampler.pruning

    def advance(
        noise: Vector, state: State, batch: PyTree, step_size: Scalar | float, due: Scalar | None = None
    ) -> tuple[State, Info]:
        form = layout or layout_of(state.position)
        flat = state.position if layout else form.ravel(state.position)
        unravel, mask = form.unravel, state.mask
        preconditioner = sampler.preconditioner.specialise(form.size, unravel)
        epsilon = jnp.asarray(step_size, flat.dtype)
        step = cast("Scalar", state.step + 1)  # it behaves as an integer array
        now = with_prior(estimator, state.prior)

        def evaluate(vector: Vector) -> tuple[Scalar, Vector]:
            value, gradient = jax.value_and_grad(now.target.potential)(unravel(vector), batch)
            return value, apply_mask(form.ravel(gradient), mask)

        def gradient_at(vector: Vector) -> Vector:
            return evaluate(vector)[1]

        origin = dynamics.origin(state.dynamics, flat, step)
        potential, plain = evaluate(origin)
        correction = now.correction(state.estimator, batch)
        gradient = plain if correction is None else plain + apply_mask(form.ravel(correction), mask)
        degrees = form.size if pruning is None else pruning.kept(form, cast("Scalar", state.step))

        operator = preconditioner.prepare(state.preconditioner, Departure(step, origin, gradient, gradient_at, mask))
        moved, move = dynamics.move(state.dynamics, operator, gradient, apply_mask(noise, mask), epsilon, step, degrees)
        arrival = origin + move.displacement
        gamma = preconditioner.correction(operator)
        if gamma is not None:
            arrival = arrival + epsilon * dynamics.temperature * gamma
        arrival = apply_mask(arrival, mask)

        transition = Transition(step, origin, arrival, plain, move.covector, move.noise, gradient_at)
        operator, lesson = preconditioner.learn(operator, transition)
        moved = dynamics.arrive(moved, arrival, step)
        if pruning is not None:
            event = _Event(dynamics, preconditioner, pruning, form, gradient_at)
            arrival, mask, moved, operator = when(
                pruning.due(step), event.prune, (arrival, mask, moved, operator), step
            )
        position = unravel(arrival)
        after = State(
            step=state.step + 1,
            position=arrival if layout else position,
            dynamics=moved,
            preconditioner=operator,
            estimator=now.refresh(state.estimator, position, step),
            # From the origin, which the batch had no part in: residuals at the arrival would be too small.
            prior=estimator.target.next_prior(
                state.prior, unravel(origin), batch, step, None if state.mask is None else unravel(state.mask)
            ),
            mask=mask,
        )
        return after, Info(
            potential=potential,
            **_look(due, gradient, move)._asdict(),
            damping=lesson.damping,
            rejected=lesson.rejected,
        )

    def init(position: PyTree) -> State:
        position = jax.tree.map(jnp.asarray, position)
        form = layout_of(position)
        flat, unravel = form.ravel(position), form.unravel
        preconditioner = sampler.preconditioner.specialise(form.size, unravel)
        prior = estimator.target.first_prior(position)
        now = with_prior(estimator, prior)
        sketch = now.target.sketch()

        def gradient_at(vector: Vector) -> Vector:
            return form.ravel(jax.grad(now.target.potential)(unravel(vector), sketch))

        operator = preconditioner.init(flat, gradient_at)
        _check_correction(dynamics, preconditioner, operator)
        if pruning is not None:
            preconditioner.specialise(pruning.last_kept(form), unravel)
        return State(
            step=StepCount.of(0),
            position=position,
            dynamics=dynamics.init(flat),
            preconditioner=operator,
            estimator=now.init(position),
            prior=prior,
            mask=None if pruning is None else jnp.ones(form.size, bool),
        )

    def draw(key: Key, position: PyTree) -> Vector:
        form = layout or layout_of(position)
        return draw_noise(key, dynamics.noise, form.size, form.dtype)

    def step(key: Key, state: State, batch: PyTree, step_size: Scalar | float) -> tuple[State, Info]:
        return advance(draw(key, state.position), state, batch, step_size)

    return Kernel(init, step, draw, advance)


def preconditioner_matrix(state: State) -> jax.Array:
    """G of a chain as a (d, d) matrix, rows in the order of `ravel_pytree(position)`; for small d.

    It is zero in the rows and columns of coordinates that were pruned.
    """
    form = layout_of(state.position)
    rows = apply_mask(jnp.eye(form.size, dtype=form.dtype), state.mask)
    return apply_mask(jax.lax.map(state.preconditioner.multiply, rows), state.mask)
