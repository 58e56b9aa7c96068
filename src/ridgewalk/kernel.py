"""A sampler is dynamics × preconditioner × gradient estimator; here they become one step of a chain."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from ridgewalk._compilation import StepCount, when
from ridgewalk._pytree import Layout, apply_mask, array_field, layout_of, pytree_dataclass
from ridgewalk._random import draw_noise
from ridgewalk._types import GradientAt, Key, Mask, PyTree, Scalar, Vector
from ridgewalk.dynamics import Dynamics, Move
from ridgewalk.gradients import GradientEstimator, as_estimator, on_batch, with_prior
from ridgewalk.preconditioners.base import (
    NoiseDirections,
    Preconditioner,
    PreconditionerSpec,
    StepContext,
    Transition,
)
from ridgewalk.pruning import Pruning
from ridgewalk.target import Target


class Tuned(NamedTuple):
    """What warm-up chose for a chain."""

    step_size: Scalar
    """ε; the step size given to a step is a factor of it."""
    friction: Scalar
    """α of dynamics whose friction is "auto"."""
    noise_variance: Scalar
    """The mean variance of the gradient's noise in whitened coordinates; 0 for exact gradients."""
    hot_until: Scalar
    """The step up to which the preconditioner adapts with a constant weight; its schedule ω_k starts there."""
    undone: Scalar
    """Steps that were undone because of their energy error, during warm-up and after it."""
    evaluation: tuple[Scalar, Vector] | None = None
    """Ũ and ∇Ũ at the position, where gradients are exact: they were needed for the energy error."""
    noise_directions: NoiseDirections | None = None
    """The gradient's noise by direction; None where gradients are exact, and where only its mean is measured."""
    measured: Any = None
    """What step size and friction were chosen from (`sampling.warmup.Measured`); None during warm-up."""


class State(NamedTuple):
    """The state of a chain."""

    step: StepCount
    """The number of steps made; common to all chains of a run."""
    position: PyTree
    """θ, in the user's structure."""
    dynamics: Any
    """The state of the dynamics: momentum, friction, earlier positions."""
    preconditioner: Any
    """The operator G."""
    estimator: Any
    """The state of the gradient estimator: SVRG's anchor."""
    prior: Any = None
    """The state of an adaptive prior; None for a plain one."""
    mask: Mask = None
    """Which entries of the flat position are not pruned; None without pruning."""
    tuning: Any = None
    """What warm-up chose, `Tuned`; during warm-up its own state; None in a run without warm-up."""


class Info(NamedTuple):
    """Per-step diagnostics."""

    potential: Scalar
    """Ũ at the origin of the step, on the step's batch."""
    gradient_norm: Scalar
    noise_norm: Scalar
    """Length of the step's noise in whitened coordinates; with momentum, of the whole step."""
    temperature: Scalar
    """The temperature estimate of the step: T + O(ε), more where gradient noise adds to it."""
    damping: Scalar
    rejected: Scalar


class Evaluation(NamedTuple):
    """A position with Ũ and ∇Ũ there."""

    position: Vector
    potential: Scalar
    gradient: Vector


class StepTrace(NamedTuple):
    """What a step was made of, for warm-up, which measures its energy error."""

    operator: Any
    """G of the step."""
    before: Evaluation
    """On the batch of the step, as are the other evaluations: Ũ and ∇Ũ, or what differs from them by a linear term
    and its slope (see `gradients.on_batch`)."""
    after: Vector
    correction: Vector | None
    """What the estimator added to the gradient."""
    whitened_step: Callable[[], Vector]
    """S⁻¹ (after − before), without the drift correction Γ."""
    evaluate: Callable[[Vector], tuple[Scalar, Vector]]
    """Ũ and ∇Ũ at a position."""
    estimate_on: Callable[[Vector, PyTree], Vector]
    """The estimate of ∇U at a position, on another batch."""

    @property
    def estimate(self) -> Vector:
        """The estimate of ∇U that the step used."""
        return corrected(self.before.gradient, self.correction)


def corrected(gradient: Vector, correction: Vector | None) -> Vector:
    """A gradient with the estimator's correction, if there is one."""
    return gradient if correction is None else gradient + correction


class Kernel(NamedTuple):
    """The transition of one chain, usable without the runner.

    `init(position)` returns a state; `step(key, state, batch, step_size)` the next state and its `Info`. `step` is
    `advance` on the noise that `draw` makes of the key: the runner draws noise for many steps at once. `advance` also
    takes whether diagnostics are due; if not, norms and temperature are 0, or NaN if the gradient is not finite.
    `trace` is `advance` with a `StepTrace`.
    """

    init: Callable[[PyTree], State]
    step: Callable[[Key, State, PyTree, Scalar | float], tuple[State, Info]]
    draw: Callable[[Key], Any]
    advance: Callable[..., tuple[State, Info]]
    trace: Callable[..., tuple[State, Info, StepTrace]]


@pytree_dataclass
class Sampler:
    """Dynamics, a preconditioner, and optionally pruning (see `pruned`); each can be exchanged without the others."""

    dynamics: Dynamics = array_field()
    preconditioner: PreconditionerSpec = array_field()
    pruning: Pruning | None = array_field(default=None)

    def resolve(self, layout: Layout) -> Preconditioner:
        """The preconditioner for positions of this layout; raises `ValueError` if it does not fit, also once pruned."""
        preconditioner = self.preconditioner.resolve(layout)
        if self.pruning is not None:
            preconditioner.check_dimension(self.pruning.last_kept(layout))
        return preconditioner


class _Diagnostics(NamedTuple):
    """The part of `Info` that no step depends on."""

    gradient_norm: Scalar
    noise_norm: Scalar
    temperature: Scalar


def _diagnose(due: Scalar | None, gradient: Vector, move: Move) -> _Diagnostics:
    """Norms and temperature if `due`; else zeros, or NaN if the gradient is not finite.

    The norms cost a step of 50 µs about 1 %; the finiteness check is a single reduction.
    """

    def compute() -> _Diagnostics:
        return _Diagnostics(jnp.linalg.norm(gradient), jnp.linalg.norm(move.noise()), move.temperature())

    def skip() -> _Diagnostics:
        zero = jnp.zeros((), gradient.dtype)
        return _Diagnostics(jnp.where(jnp.all(jnp.isfinite(gradient)), zero, jnp.nan), zero, zero)

    return compute() if due is None else jax.lax.cond(due, compute, skip)


class _PruningEvent(NamedTuple):
    """Pruning at the end of a step."""

    dynamics: Dynamics
    preconditioner: Preconditioner
    pruning: Pruning
    layout: Layout
    gradient_at: GradientAt

    def prune(self, chain: tuple[Vector, Mask, Any, Any], step: Scalar) -> tuple[Vector, Mask, Any, Any]:
        """Position, mask, and the states of dynamics and preconditioner after the event."""
        flat, before, moved, operator = chain
        if before is None:
            raise ValueError(
                "state: it has no mask, so it belongs to a sampler without pruning; start from this kernel's init"
            )
        mask = self.pruning.update_mask(self.layout, flat, before, step)
        flat = apply_mask(flat, mask)
        operator = self.preconditioner.prune(operator, mask, flat, lambda x: apply_mask(self.gradient_at(x), mask))
        return flat, mask, self.dynamics.prune(moved, mask), operator


def _check_correction(dynamics: Dynamics, preconditioner: Preconditioner, operator: Any) -> None:
    if preconditioner.correction(operator) is not None and not dynamics.takes_correction:
        raise ValueError(
            f"preconditioner: {type(preconditioner).__name__} depends on the position and needs the correction Γ, "
            f"which {type(dynamics).__name__} dynamics cannot use; use Langevin dynamics, or a position-independent G"
        )


class _KernelFunctions(NamedTuple):
    """The functions of a kernel."""

    dynamics: Dynamics
    preconditioner: Preconditioner
    pruning: Pruning | None
    estimator: GradientEstimator
    layout: Layout
    flat: bool

    def init(self, position: PyTree) -> State:
        position = jax.tree.map(jnp.asarray, position)
        layout, estimator = self.layout, self.estimator
        if not layout.matches(position):
            raise ValueError(
                f"position: its leaves are {_shapes(position)}, the kernel is for {_shapes(layout.position)}; build a "
                "kernel for this position"
            )
        start = layout.ravel(position)
        prior = estimator.target.first_prior(position)
        now = with_prior(estimator, prior)
        subsample = now.target.subsample()

        def gradient_at(vector: Vector) -> Vector:
            return layout.ravel(jax.grad(now.target.potential)(layout.unravel(vector), subsample))

        operator = self.preconditioner.init(start, gradient_at)
        mask = None if self.pruning is None else jnp.ones(layout.size, bool)
        if layout.placement is not None and layout.placement.padded:
            mask = layout.placement.valid()  # zeros that fill up the flat vector are as pruned
            operator = self.preconditioner.prune(operator, mask, start, gradient_at)
        _check_correction(self.dynamics, self.preconditioner, operator)
        return State(
            step=StepCount.of(0),
            position=position,
            dynamics=self.dynamics.init(start),
            preconditioner=operator,
            estimator=now.init(position),
            prior=prior,
            mask=mask,
        )

    def trace(
        self, noise: Vector, state: State, batch: PyTree, step_size: Scalar | float, due: Scalar | None = None
    ) -> tuple[State, Info, StepTrace]:
        dynamics, preconditioner, pruning = self.dynamics, self.preconditioner, self.pruning
        layout, estimator = self.layout, self.estimator
        unravel = layout.unravel
        start = state.position if self.flat else layout.ravel(state.position)
        mask, tuned = state.mask, state.tuning
        epsilon = jnp.asarray(step_size, start.dtype)
        friction, noise_variance, directions, hot_until, known = None, None, None, None, None
        if tuned is not None:
            epsilon = (epsilon * tuned.step_size).astype(start.dtype)
            friction, noise_variance = tuned.friction.astype(start.dtype), tuned.noise_variance.astype(start.dtype)
            hot_until, known = tuned.hot_until, tuned.evaluation
            directions = jax.tree.map(lambda x: x.astype(start.dtype), tuned.noise_directions)
        step = cast("Scalar", state.step + 1)  # it behaves as an integer array
        now = with_prior(estimator, state.prior)

        def masked(tree: PyTree) -> Vector:
            return apply_mask(layout.ravel(tree), mask)

        def on(origin: Vector, batch: PyTree) -> tuple[Callable[[Vector], tuple[Scalar, Vector]], Vector | None]:
            found = on_batch(now, state.estimator, unravel(origin), batch)

            def evaluate(vector: Vector) -> tuple[Scalar, Vector]:
                value, gradient = jax.value_and_grad(found.potential)(unravel(vector))
                return value, masked(gradient)

            return evaluate, None if found.correction is None else masked(found.correction)

        def estimate_on(vector: Vector, batch: PyTree) -> Vector:
            evaluate, correction = on(vector, batch)
            return corrected(evaluate(vector)[1], correction)

        origin = dynamics.origin(state.dynamics, start, step)
        evaluate, correction = on(origin, batch)

        def gradient_at(vector: Vector) -> Vector:
            return evaluate(vector)[1]

        potential, plain = evaluate(origin) if known is None else known
        gradient = corrected(plain, correction)
        degrees = layout.size if pruning is None else pruning.kept(layout, cast("Scalar", state.step))
        noise = apply_mask(noise, mask)
        context = StepContext(
            step, origin, gradient, gradient_at, noise, epsilon, degrees, mask, friction, noise_variance, directions
        )

        used = preconditioner.prepare(state.preconditioner, context)
        moved, move = dynamics.move(state.dynamics, used, context)
        arrival = origin + move.displacement
        gamma = preconditioner.correction(used)
        if gamma is not None:
            arrival = arrival + epsilon * dynamics.temperature * gamma
        arrival = apply_mask(arrival, mask)

        made = StepTrace(
            used,
            Evaluation(origin, potential, plain),
            arrival,
            correction,
            lambda: used.factor_transpose(move.covector) + move.noise(),
            evaluate,
            estimate_on,
        )
        transition = Transition(step, origin, arrival, plain, move.covector, move.noise(), gradient_at, hot_until)
        operator, update = preconditioner.update(used, transition)
        moved = dynamics.arrive(moved, arrival, step)
        if pruning is not None:
            event = _PruningEvent(dynamics, preconditioner, pruning, layout, gradient_at)
            arrival, mask, moved, operator = when(
                pruning.due(step), event.prune, (arrival, mask, moved, operator), step
            )
        after = unravel(arrival)
        result = State(
            step=state.step + 1,
            position=arrival if self.flat else after,
            dynamics=moved,
            preconditioner=operator,
            estimator=now.update(state.estimator, after, step),
            # At the origin, which does not depend on the batch: residuals at the arrival would be too small.
            prior=estimator.target.next_prior(
                state.prior, unravel(origin), batch, step, None if state.mask is None else unravel(state.mask)
            ),
            mask=mask,
            tuning=tuned,
        )
        info = Info(
            potential=potential,
            **_diagnose(due, gradient, move)._asdict(),
            damping=update.damping,
            rejected=update.rejected,
        )
        return result, info, made

    def advance(
        self, noise: Vector, state: State, batch: PyTree, step_size: Scalar | float, due: Scalar | None = None
    ) -> tuple[State, Info]:
        return self.trace(noise, state, batch, step_size, due)[:2]

    def draw(self, key: Key) -> Vector:
        placement, kind, dtype = self.layout.placement, self.dynamics.noise, self.layout.dtype
        if placement is not None:
            return placement.draw(lambda own, count: draw_noise(own, kind, count, dtype), key)
        return draw_noise(key, kind, self.layout.size, dtype)

    def step(self, key: Key, state: State, batch: PyTree, step_size: Scalar | float) -> tuple[State, Info]:
        return self.advance(self.draw(key), state, batch, step_size)


def build_kernel(
    sampler: Sampler, target: Target | GradientEstimator, position: PyTree, *, flat: bool = False
) -> Kernel:
    """The kernel of a sampler on a target, or on a gradient estimator such as `control_variates(target, …)`.

    `position` gives the structure, shapes and dtypes of the parameters; its values are not used. Step sizes follow the
    convention of `Langevin`: ε multiplies the gradient, and the noise has variance 2ε. With `flat`, the states that
    `advance` takes and returns hold the position as a flat vector, which saves two copies of all parameters a step.
    """
    layout = layout_of(jax.eval_shape(lambda tree: jax.tree.map(jnp.asarray, tree), position))
    parts = (sampler.dynamics, sampler.resolve(layout), sampler.pruning, as_estimator(target), layout, flat)
    functions = _KernelFunctions(*parts)
    return Kernel(functions.init, functions.step, functions.draw, functions.advance, functions.trace)


def _shapes(position: PyTree) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(position))


def preconditioner_matrix(state: State) -> jax.Array:
    """G of a chain as a (d, d) matrix, rows in the order of `ravel_pytree(position)`; for small d.

    It is zero in the rows and columns of pruned parameters.
    """
    layout = layout_of(state.position)
    rows = apply_mask(jnp.eye(layout.size, dtype=layout.dtype), state.mask)
    return apply_mask(jax.lax.map(state.preconditioner.multiply, rows), state.mask)
