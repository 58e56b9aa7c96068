"""Steps with a measured energy error: their step size follows it during warm-up, and large errors are undone.

With h the step of the leapfrog scheme that a step is equivalent to (ε = h² (1 − α/2) for friction α, which is 1 for
Langevin dynamics), the error of one step is ΔH = Ũ' − Ũ − sᵀ(g + g')/2 + h² (|Sᵀg'|² − |Sᵀg|²) / 8, all on the batch of
the step; its variance is O(d h⁶), and h is held where it is `energy_error` per parameter, as in the tuning of MCLMC
(Robnik et al. 2023). Our step with friction is that leapfrog step after a partial refreshment of the momentum, so with
exact gradients Metropolis's rule on ΔH, with the momentum reversed where it rejects, leaves the posterior invariant
(Horowitz 1991); at friction 1 it is MALA.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import when
from ridgewalk._pytree import Layout, current_placement
from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk.dynamics import BAOAB, DelayedLangevin, Dynamics, Hamiltonian, Langevin, MomentumDynamics, NoseHoover
from ridgewalk.gradients import GradientEstimator, Minibatch, with_prior
from ridgewalk.kernel import Info, Kernel, Sampler, State, StepTrace, Tuned, corrected
from ridgewalk.preconditioners.base import (
    DENSE_UP_TO,
    AdaptivePreconditioner,
    ByDimension,
    NoiseDirections,
    Preconditioner,
    PreconditionerSpec,
    StaticPreconditioner,
)
from ridgewalk.preconditioners.diagonal import Diagonal
from ridgewalk.preconditioners.rescaled import RescaledSpec
from ridgewalk.sampling.batching import first_half, shards_of_device

HUGE_ERROR, LARGE_ERROR = 1000.0, 10.0
"""Energy errors above which a step is undone: during warm-up, and after it where steps are not Metropolis-adjusted."""

MOST_FAILURES = 5
"""Steps undone in a row, after which the preconditioner starts again."""

MOST_ABOVE = 10.0
"""How far h may be above that of the steps, where gradient noise makes them shorter."""

NOISE_EVERY = 5
"""Steps between estimates of the gradient noise."""

NOISE_DIRECTIONS = 8
"""The number of directions in which the variance of the gradient noise is measured: a hierarchical model has much more
noise in its few hyper-parameters than on average."""

FRICTION = 0.8
"""Times h over the standard deviation of the slowest whitened coordinates: at 1 their variances mix fastest."""

LOW_FRICTION = 0.15
"""The same where no constant G describes the posterior: means mix the faster the less friction there is, and so do the
predictions of a network, whose variances are not of interest."""


BIAS_ERROR = 5e-4
"""The variance of the energy error per parameter without Metropolis's rule: variances of a Gaussian target are then too
large by 5 %."""

SPLITTING_ERROR = 5e-3
"""The same for BAOAB, which has no bias on a Gaussian target: a step then has two thirds of its scale."""

STIFF_ERROR = 2e-2
"""The same where no constant G describes the posterior: a few directions of large curvature have nearly all of the
energy error, and the limit of stability there bounds the step size."""

NOISY_ERROR = 1e-4
"""The same with minibatches, from which G is still learnt after warm-up, and may grow: 3 %."""

LANGEVIN_ERROR, MOMENTUM_ERROR = 0.25, 0.02
"""The variance of the energy error with Metropolis's rule, where it is the less: four fifths of the steps are accepted
without momentum, and 19 of 20 with it, because a rejected step reverses the momentum."""


SETTLING_NOISE, SETTLING_FRICTION = 1.0, 0.5
"""The gradient noise allowed, and the least friction, in the second phase. With little friction, steps in a row have
similar directions, and a window of pairs sees few of them."""


class PhaseSpec(NamedTuple):
    """The static settings of a phase of warm-up, and of the run after it where gradients are exact."""

    arriving: bool = False
    """Whether this is the first phase: larger energy errors, most of all where the potential falls."""
    tuning: bool = True
    """Whether the step size follows the energy error; False after warm-up."""
    exact: bool = False
    """Whether gradients are computed on all data."""
    cached: bool = False
    """Whether ∇Ũ at the end of a step serves the next one: the potential is the same, and the step begins there."""
    adjusted: bool = False
    """Whether steps are accepted by Metropolis's rule."""
    energy_error: float = BIAS_ERROR
    """The variance of the energy error of a step, per parameter."""
    noise_fraction: float = 0.2
    """The gradient noise allowed, relative to the noise of a step."""
    least_friction: float = 1e-4
    """Of "auto" friction."""
    friction: float = FRICTION
    """Of "auto" friction, times h over the standard deviation of the slowest whitened coordinates."""

    def fallen_back(self) -> "PhaseSpec":
        """The settings of the run where no constant G describes the posterior, if steps are not adjusted."""
        if self.adjusted or not self.exact:
            return self
        error = STIFF_ERROR if self.energy_error == SPLITTING_ERROR else self.energy_error
        return self._replace(energy_error=error, friction=LOW_FRICTION)

    @property
    def forgetting(self) -> float:
        """The weight of the former estimate of h after one step."""
        return 0.8 if self.arriving else 0.98

    def of_phase(self, phase: int) -> "PhaseSpec":
        """The settings of a phase of warm-up, from those of the run after it."""
        if phase == 0:
            return self._replace(tuning=True, arriving=True, energy_error=1.0, noise_fraction=10.0)
        return self._replace(tuning=True)  # one compiled program for both phases


def unit_step(energy_error: float) -> float:
    """The h of this energy error where the curvature is 1 in all whitened directions: its variance is h⁶/16."""
    return float((16 * energy_error) ** (1 / 6))


def is_constant(preconditioner: PreconditionerSpec) -> bool:
    """Whether G does not depend on the position, but for adaptation that fades."""
    if isinstance(preconditioner, ByDimension):
        return is_constant(preconditioner.small) and is_constant(preconditioner.large)
    if isinstance(preconditioner, RescaledSpec):
        return is_constant(preconditioner.inner)
    rule = preconditioner.unwrapped if isinstance(preconditioner, Preconditioner) else preconditioner
    return isinstance(rule, AdaptivePreconditioner | StaticPreconditioner)


def subtracts_noise(dynamics: Dynamics) -> bool:
    """Whether the injected noise is reduced by the measured noise of the gradient."""
    return type(dynamics) is Langevin or (isinstance(dynamics, Hamiltonian) and dynamics.friction == "auto")


def phase_spec(sampler: Sampler, estimator: GradientEstimator, dimension: int, exact: bool) -> PhaseSpec:
    """The settings of the run after warm-up; those of its phases are derived from them.

    Steps are Metropolis-adjusted where gradients are exact, G does not depend on the position, and it costs little:
    h then decreases with the number of parameters, while without it the bias remains the same.
    """
    dynamics = sampler.dynamics
    plain = isinstance(estimator, Minibatch) and not getattr(estimator.target, "adaptive", False)
    cached = exact and plain and sampler.pruning is None and not isinstance(dynamics, DelayedLangevin)
    error = (MOMENTUM_ERROR if is_momentum(dynamics) else LANGEVIN_ERROR) / dimension
    adjusted = cached and type(dynamics) in (Langevin, Hamiltonian, BAOAB) and error >= BIAS_ERROR / 5
    adjusted = adjusted and is_constant(sampler.preconditioner)
    unadjusted = NOISY_ERROR
    if exact:
        unadjusted = SPLITTING_ERROR if isinstance(dynamics, BAOAB) else BIAS_ERROR
    fraction = 0.5 if subtracts_noise(dynamics) else 0.2
    return PhaseSpec(False, False, exact, cached, adjusted, error if adjusted else unadjusted, fraction)


class NoiseStatistics(NamedTuple):
    """The gradient noise in whitened coordinates, in the current window of warm-up."""

    recent: Scalar
    """Recent mean of its variance, over all directions; 0 for exact gradients."""
    total: Scalar
    number: Scalar
    """Sum and number of the variances measured in the window."""
    vectors: jax.Array | None
    """Orthonormal directions (d, R) along which it is measured: about those of largest variance. None: only the mean
    is measured."""
    along: Vector | None
    """Sum of the variances along each of them."""
    sketch: jax.Array | None
    """The sum of n nᵀ times these directions, n the noise: the next ones, by a power iteration."""
    spread: Vector | None
    """Variances along the directions of the former window, which are those of `Tuned.noise_directions`, relative to
    the mean."""

    @property
    def largest(self) -> Scalar:
        """The largest variance of a direction."""
        return self.recent if self.spread is None else self.recent * jnp.max(self.spread, axis=-1, initial=1.0)

    def add(self, noise: Vector, expected: float) -> "NoiseStatistics":
        """With one estimate of the noise; `expected` of each of its squares is not noise."""
        variance = jnp.maximum(noise @ noise / noise.shape[0] - expected, 0)
        usable = jnp.isfinite(variance)
        variance = jnp.where(usable, variance, self.recent).astype(self.recent.dtype)
        found = self._replace(
            recent=0.9 * self.recent + 0.1 * variance, total=self.total + variance, number=self.number + 1
        )
        if self.vectors is None or self.along is None or self.sketch is None:
            return found
        noise = jnp.where(usable, noise, 0).astype(self.vectors.dtype)
        along = noise @ self.vectors
        return found._replace(along=self.along + along**2 - expected, sketch=self.sketch + jnp.outer(noise, along))

    def next_window(self) -> tuple["NoiseStatistics", jax.Array | None]:
        """The statistics of the next window, and the directions of this one.

        A variance that is larger than the mean by less than its own error, as when all are alike, counts as the mean.
        """
        zero, number = jnp.zeros_like(self.total), jnp.maximum(self.number, 1)
        measured = self.number > 0
        recent = jnp.where(measured, self.total / number, self.recent)
        found = self._replace(recent=recent, total=zero, number=zero)
        if self.vectors is None or self.along is None or self.sketch is None:
            return found, None
        spread = self.along / number / jnp.maximum(recent, jnp.finfo(recent.dtype).tiny)
        significant = measured & (spread > 1 + 3 * jnp.sqrt(2 / number))
        basis = jnp.linalg.qr(self.sketch)[0]
        usable = measured & jnp.all(jnp.isfinite(basis))
        found = found._replace(
            vectors=jnp.where(usable, basis, self.vectors),
            along=jnp.zeros_like(self.along),
            sketch=jnp.zeros_like(self.sketch),
            spread=jnp.where(significant, spread, 1),
        )
        return found, self.vectors


def first_noise(dimension: int, directions: int, dtype: Any) -> NoiseStatistics:
    """Before any measurement, along random directions."""
    zero = jnp.zeros((), dtype)
    if not directions:
        return NoiseStatistics(zero, zero, zero, None, None, None, None)
    nothing = jnp.zeros(directions, dtype)
    random = jax.random.normal(jax.random.key(0), (dimension, directions), dtype)
    vectors = jnp.linalg.qr(random)[0]
    return NoiseStatistics(zero, zero, zero, vectors, nothing, jnp.zeros_like(vectors), nothing + 1)


def noise_directions(sampler: Sampler, dimension: int, exact: bool) -> int:
    """In how many directions the gradient noise is measured: in none if memory counts, or if parameters are pruned."""
    alike = exact or sampler.pruning is not None or current_placement() is not None or dimension > DENSE_UP_TO
    return 0 if alike else min(NOISE_DIRECTIONS, dimension // 2)


def scale_noise(tuned: Tuned, variance: jax.Array) -> Tuned:
    """What warm-up chose for the chains with this mean variance of the gradient noise, and each its own directions."""
    directions = tuned.noise_directions
    if directions is not None:
        directions = _scaled(directions, tuned.noise_variance, variance)
    return tuned._replace(noise_variance=variance, noise_directions=directions)


@jax.jit
def _scaled(directions: NoiseDirections, own: jax.Array, variance: jax.Array) -> NoiseDirections:
    factor = jnp.where(own > 0, variance / jnp.where(own > 0, own, 1), 1)
    return NoiseDirections(directions.vectors, directions.variances * factor[:, None], directions.others * factor)


class WarmupState(NamedTuple):
    """The state of a chain's warm-up."""

    tuned: Tuned
    root_step: Scalar
    """h."""
    excess: Scalar
    """Weighted sum of ξ (h/h_k)⁶, ξ the squared energy error relative to that allowed."""
    weight: Scalar
    failures: Scalar
    """Steps undone in a row."""
    noise: NoiseStatistics
    diagonal: Vector
    """The diagonal of G at the end of the first phase."""
    travelled: Vector
    """The sum of all whitened steps: the position in units of S."""
    window_steps: Scalar
    """Steps of the current window."""
    mean: Vector
    squares: Vector
    """Σ (x − mean)² of `travelled` over the window."""
    mean_log_step: Scalar
    """Mean of log h over the window."""
    centre: Vector
    """Mean position over the window."""
    last_centre: Vector
    last_log_step: Scalar
    """These means over the last complete window."""
    scale: Scalar
    """Root mean square standard deviation of `travelled` over the last complete window."""
    slow_scale: Scalar
    """The same over the hundredth of the coordinates that varied most."""


def is_momentum(dynamics: Dynamics) -> bool:
    """Whether the dynamics have a momentum."""
    return isinstance(dynamics, MomentumDynamics)


def friction_of(dynamics: Dynamics, tuned: Tuned) -> Scalar | float:
    """α of a step; 1 for dynamics without momentum."""
    if isinstance(dynamics, Hamiltonian):
        return tuned.friction if dynamics.friction == "auto" else dynamics.friction
    return dynamics.diffusion if isinstance(dynamics, NoseHoover) else 1.0


def arrival_sampler(sampler: Sampler) -> Sampler:
    """The sampler of the first phase: momentum and a diagonal preconditioner, with the pruning of the run."""
    dynamics = Hamiltonian("auto", temperature=sampler.dynamics.temperature, noise=sampler.dynamics.noise)
    return replace(sampler, dynamics=dynamics, preconditioner=Diagonal())


def settling_sampler(sampler: Sampler) -> Sampler:
    """The sampler of the second and third phase: Langevin dynamics with an adaptive preconditioner get a momentum."""
    dynamics = sampler.dynamics
    if type(dynamics) is not Langevin or not isinstance(sampler.preconditioner, AdaptivePreconditioner):
        return sampler
    momentum = Hamiltonian("auto", temperature=dynamics.temperature, noise=dynamics.noise)
    return replace(sampler, dynamics=momentum)


class TunedStepper:
    """A step of the sampler that is undone if its energy error is large; in warm-up, and the step size of the next."""

    def __init__(
        self, kernel: Kernel, sampler: Sampler, estimator: GradientEstimator, layout: Layout, spec: PhaseSpec
    ) -> None:
        self.kernel, self.sampler, self.estimator, self.layout, self.spec = kernel, sampler, estimator, layout, spec
        self.preconditioner = sampler.resolve(layout)

    def advance(
        self,
        window_ends: jax.Array | np.ndarray | None,
        noise: tuple[Vector, Scalar],
        state: State,
        batch: PyTree,
        step_size: Scalar | float,
        due: Scalar | None,
    ) -> tuple[State, Info]:
        """The state after the step, the position as a flat vector; statistics are renewed at `window_ends`.

        `noise` is that of the step and a uniform number for Metropolis's rule.
        """
        spec, tuning = self.spec, state.tuning
        tuned: Tuned = tuning.tuned if spec.tuning else tuning
        normals, uniform = noise
        factor = 1.0 if spec.tuning else step_size
        after, info, trace = self.kernel.trace(normals, state._replace(tuning=tuned), batch, factor, due)
        value, gradient = trace.evaluate(trace.after)
        error, allowed, size = self._energy_error(factor * tuned.step_size, tuned, trace, value, gradient)
        sound = jnp.all(jnp.isfinite(trace.after)) & (error < HUGE_ERROR)
        if spec.tuning:
            sound &= _all_finite(after.preconditioner)
        accepted = sound
        if spec.adjusted and not spec.arriving:
            accepted = sound & (jnp.log(uniform) < -error)
        elif not spec.tuning:
            accepted = sound & (error < LARGE_ERROR + 4 * jnp.sqrt(allowed))
        if spec.cached:
            evaluation = where_tree(accepted, (value, gradient), (trace.before.potential, trace.before.gradient))
            tuned = tuned._replace(evaluation=evaluation)
        if spec.adjusted and is_momentum(self.sampler.dynamics):
            info = info._replace(temperature=self._kinetic_temperature(factor * tuned.step_size, tuned, trace))
        tuned = tuned._replace(undone=tuned.undone + ~accepted)
        kept = self._undo(state, after, accepted)
        if not spec.tuning:
            return kept._replace(tuning=tuned), info
        before = state._replace(dynamics=self.sampler.dynamics.init(trace.before.position))
        both = [each._replace(tuning=None, step=None) for each in (kept, before)]  # type: ignore[arg-type]
        kept = where_tree(sound, *both)  # without the step, which is common to all chains
        warm = self._next_step_size(tuning._replace(tuned=tuned), error, allowed, sound)
        if not spec.exact:
            warm = self._measure_noise(warm, trace, batch, state)
        warm = self._record(warm, kept.position, jnp.where(accepted, trace.whitened_step(), 0))
        warm = when(jnp.any(state.step.low + 1 == window_ends), self._end_window, warm, ())
        if not spec.arriving:
            temperature = self.sampler.dynamics.temperature
            variances = ((1 + noise) * temperature for noise in (warm.noise.recent, warm.noise.largest))
            limited = self.preconditioner.limit(kept.preconditioner, trace.estimate, *variances)
            kept = kept._replace(preconditioner=limited)
        kept = when(warm.failures >= MOST_FAILURES, self._start_again, kept, (warm.diagonal, batch))
        warm = warm._replace(failures=warm.failures % MOST_FAILURES)
        assert window_ends is not None
        settling = state.step.low < window_ends[1]
        return kept._replace(tuning=self._apply(warm, size, settling), step=after.step), info

    def _undo(self, before: State, after: State, accepted: Scalar) -> State:
        """The position before the step, and the reversed momentum, unless the step is accepted."""
        position = jnp.where(accepted, after.position, before.position)
        moved = where_tree(accepted, after.dynamics, self.sampler.dynamics.reverse(after.dynamics))
        return after._replace(position=position, dynamics=moved)

    def _energy_error(
        self, step_size: Scalar, tuned: Tuned, trace: StepTrace, value: Scalar, gradient: Vector
    ) -> tuple[Scalar, Scalar, Scalar]:
        """ΔH/T of the step, the square that is allowed, and |Sᵀg|²/d before the step."""
        spec, temperature = self.spec, self.sampler.dynamics.temperature
        before, dtype = trace.before, tuned.step_size.dtype
        s, difference = trace.after - before.position, value - before.potential
        both = before.gradient, gradient
        whitened = [trace.operator.factor_transpose(corrected(g, trace.correction)) for g in both]
        leapfrog = step_size / (1 - friction_of(self.sampler.dynamics, tuned) / 2)
        kinetic = leapfrog / 8 * (whitened[1] @ whitened[1] - whitened[0] @ whitened[0])
        error = (difference - s @ (both[0] + both[1]) / 2 + kinetic) / temperature
        rounding = 4 * jnp.finfo(value.dtype).eps * jnp.abs(value) / temperature
        allowed = self.layout.size * spec.energy_error + rounding**2
        if spec.arriving:
            allowed = allowed + (0.2 * difference / temperature) ** 2
        size = whitened[0] @ whitened[0] / self.layout.size
        return error.astype(dtype), allowed.astype(dtype), size.astype(dtype)

    def _kinetic_temperature(self, step_size: Scalar, tuned: Tuned, trace: StepTrace) -> Scalar:
        """Of the refreshed momentum that the leapfrog step begins with: on average T, if positions have temperature T.

        After the half kick that follows, where runs without Metropolis's rule measure it, it is higher.
        """
        h = jnp.sqrt(step_size / (1 - friction_of(self.sampler.dynamics, tuned) / 2))
        momentum = trace.whitened_step() / h + h / 2 * trace.operator.factor_transpose(trace.before.gradient)
        return (momentum @ momentum / self.layout.size).astype(trace.before.potential.dtype)

    def _next_step_size(self, warm: WarmupState, error: Scalar, allowed: Scalar, good: Scalar) -> WarmupState:
        """h after a step with this energy error."""
        # Gradient noise may have made the step shorter than h.
        used = jnp.sqrt(warm.tuned.step_size / (1 - friction_of(self.sampler.dynamics, warm.tuned) / 2))
        shorter = warm.root_step / used
        ratio = (jnp.where(good, error**2 / allowed, 1.0) + 1e-8) * shorter**6
        weight = jnp.where(good, jnp.exp(-0.5 * (jnp.log(ratio) / 9) ** 2), 0.0)
        excess = self.spec.forgetting * warm.excess + weight * ratio
        total = self.spec.forgetting * warm.weight + weight
        wanted = (excess / jnp.maximum(total, 1e-8)) ** (-1 / 6)
        factor = jnp.where(good, jnp.clip(wanted, 0.5, 1.5), 0.7)
        factor = jnp.minimum(factor, MOST_ABOVE / shorter)
        return warm._replace(
            root_step=warm.root_step * factor,
            failures=jnp.where(good, 0, warm.failures + 1),
            excess=jnp.where(good, excess * factor**6, warm.excess * factor**6),
            weight=jnp.where(good, total, warm.weight),
        )

    def _measure_noise(self, warm: WarmupState, trace: StepTrace, batch: PyTree, state: State) -> WarmupState:
        """V from the gradient on half of the batch less that of the step, every few steps.

        Of m of the n rows it differs by a variance of σ² (1/m − 1/n), where that of the step is σ²/n. For m = n/2 the
        difference is half of that between the two halves, but needs one gradient, and one sum over devices, less.
        """
        data = getattr(self.estimator.target, "data", None)
        rows = jax.tree.leaves(batch)[0].shape[0] // shards_of_device(data)
        half = rows // 2

        def measure(found: NoiseStatistics, arrays: tuple[Vector, Vector, PyTree]) -> NoiseStatistics:
            position, whole, batch = arrays
            if rows < 2:
                return found.add(trace.operator.factor_transpose(whole), 1.0)
            factor = (half / (rows - half)) ** 0.5
            change = trace.estimate_on(position, first_half(data, batch)) - whole
            return found.add(factor * trace.operator.factor_transpose(change), 0.0)

        operands = trace.before.position, trace.estimate, batch
        return warm._replace(noise=when(state.step % NOISE_EVERY == 0, measure, warm.noise, operands))

    def _record(self, warm: WarmupState, position: Vector, whitened: Vector) -> WarmupState:
        """Running moments of the window (Welford)."""
        travelled, count = warm.travelled + whitened, warm.window_steps + 1
        before = travelled - warm.mean
        mean = warm.mean + before / count
        return warm._replace(
            travelled=travelled,
            window_steps=count,
            mean=mean,
            squares=warm.squares + before * (travelled - mean),
            mean_log_step=warm.mean_log_step + (jnp.log(warm.root_step) - warm.mean_log_step) / count,
            centre=warm.centre + (position - warm.centre) / count,
        )

    def _end_window(self, warm: WarmupState, _: Any) -> WarmupState:
        """The friction of the next window, from the standard deviation in whitened coordinates."""
        variances = warm.squares / jnp.maximum(warm.window_steps - 1, 1)

        def root(variance: Scalar) -> Scalar:
            return jnp.sqrt(jnp.where(jnp.isfinite(variance) & (variance > 0), variance, 1)).astype(warm.scale.dtype)

        nothing = jnp.zeros_like(warm.squares)
        count = jnp.zeros_like(warm.window_steps)
        noise, vectors = warm.noise.next_window()
        tuned, directions = warm.tuned, warm.tuned.noise_directions
        if directions is not None and vectors is not None:
            tuned = tuned._replace(noise_directions=directions._replace(vectors=vectors))
        return warm._replace(
            tuned=tuned,
            noise=noise,
            scale=root(jnp.mean(variances)),
            slow_scale=root(mean_of_largest(variances)),
            last_centre=warm.centre,
            last_log_step=warm.mean_log_step,
            window_steps=count,
            mean=warm.travelled,
            squares=nothing,
        )

    def _start_again(self, state: State, arrays: tuple[Vector, PyTree]) -> State:
        """The preconditioner from the diagonal of the first phase, after several steps in a row were undone."""
        diagonal, batch = arrays
        target = with_prior(self.estimator, state.prior).target

        def gradient_at(vector: Vector) -> Vector:
            return self.layout.ravel(jax.grad(target.potential)(self.layout.unravel(vector), batch))

        started = self.preconditioner.init_from_diagonal(state.position, gradient_at, diagonal)
        if state.mask is not None:
            started = self.preconditioner.prune(started, state.mask, state.position, gradient_at)
        return state._replace(preconditioner=started)

    def _apply(self, warm: WarmupState, size: Scalar, settling: Scalar) -> WarmupState:
        """ε and friction of the next step: those of h, less where the gradient noise would heat the chain.

        `settling`: whether this is the second phase; False in the third.

        Far from the posterior, where the gradient is larger than its noise, more noise is allowed: there it decreases
        with the gradient, as the chain approaches.
        """
        spec, dynamics = self.spec, self.sampler.dynamics
        h = warm.root_step
        temperature = dynamics.temperature
        noise, largest = warm.noise.recent.astype(h.dtype), warm.noise.largest.astype(h.dtype)
        allowed: Any = (
            spec.noise_fraction if spec.arriving else jnp.where(settling, SETTLING_NOISE, spec.noise_fraction)
        )
        fraction = allowed + 0.1 * jnp.maximum(size / temperature - noise, 0)
        if not spec.exact and not isinstance(dynamics, NoseHoover):
            # Excess temperature: h² V / (2 α) with momentum, ε V / 2 = h² V / 4 without.
            most = (2 if is_momentum(dynamics) else 4) * fraction * temperature
            h = jnp.minimum(h, jnp.sqrt(most / jnp.maximum(largest, 1e-20)))
        friction = jnp.clip(h, 0.2, 1.0)
        if not spec.arriving:
            least = jnp.where(settling, SETTLING_FRICTION, spec.least_friction)
            friction = jnp.clip(spec.friction * h / warm.slow_scale, least, 1.0)
        if not spec.exact:
            least = h**2 * largest / (2 * fraction * temperature)
            friction = jnp.clip(jnp.maximum(friction, least), 0, 1)
        noise = jnp.zeros_like(h) if spec.arriving else noise
        tuned = warm.tuned._replace(friction=friction.astype(h.dtype), noise_variance=noise)
        directions, spread = tuned.noise_directions, warm.noise.spread
        if directions is not None and spread is not None:
            left = self.layout.size - spread.shape[0]
            others = noise * jnp.maximum(self.layout.size - jnp.sum(spread), 0) / left
            directions = NoiseDirections(directions.vectors, noise * spread, others)
            tuned = tuned._replace(noise_directions=directions)
        step_size = h**2 * (1 - friction_of(dynamics, tuned) / 2)
        return warm._replace(tuned=tuned._replace(step_size=step_size.astype(h.dtype)))


def mean_of_largest(variances: Vector) -> Scalar:
    """The mean of the largest hundredth; where devices share the numbers, of the largest hundredth of each."""

    def mean(part: Vector) -> Scalar:
        return jnp.mean(jax.lax.top_k(part, max(1, part.shape[0] // 100))[0])

    placement = current_placement()
    return mean(variances) if placement is None else placement.sum_of_parts(mean, variances) / placement.mesh.size


def where_tree(condition: Scalar, new: Any, old: Any) -> Any:
    """The leaves of one tree or of the other."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _all_finite(tree: PyTree) -> Scalar:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.asarray(True)
