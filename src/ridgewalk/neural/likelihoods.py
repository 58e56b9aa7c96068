"""Likelihoods of a network's outputs: Gaussian and Student's t with learnt noise, relative errors of fields, classes.

A likelihood has parameters of its own, such as log σ, which are sampled with the weights, and acts on the outputs of
the network, `raw`, of shape (example, `network_outputs`). Targets y are (example, output), standardised; for classes
(example, 1), their numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from ridgewalk._types import Scalar
from ridgewalk._validation import check_positive
from ridgewalk.neural import NoiseKind

Own = Mapping[str, jax.Array]
"""The likelihood's own parameters, by name."""

FIRST_NOISE, NOISE_WIDTH = 0.2, 1.0
"""log σ ~ N(log 0.2, 1²) for targets scaled to a standard deviation of 1."""

INPUT_NOISE = 0.5
"""With noise="input", log σ(x) = log σ + 0.5 g(x), g an output of the network."""

TAIL_CENTRE = 1.5
"""Degrees of freedom ν = 2 + exp(a), a ~ N(1.5, 1): between 3.6 and 14 with probability 2/3."""


def no_prior() -> Scalar:
    """The log prior of no parameters; added to a number of any precision it does not change that."""
    return jnp.zeros((), jnp.float32)


class Observed(NamedTuple):
    """The distribution of observations given the parameters: location, scale σ and degrees of freedom."""

    location: jax.Array
    """(example, output)."""
    scale: jax.Array
    """(example, output)."""
    degrees: jax.Array
    """ν of Student's t, a scalar; infinite for Gaussians."""


class Likelihood(Protocol):
    """Observations given the outputs of a network."""

    @property
    def network_outputs(self) -> int:
        """Numbers that the network has to give for each example."""

    def start(self, dtype: str) -> dict[str, np.ndarray]:
        """The parameters beside the weights, where chains start."""

    def log_prior(self, own: Own) -> Scalar:
        """Of these parameters."""

    def log_likelihood(self, own: Own, raw: jax.Array, y: jax.Array) -> jax.Array:
        """One value for each example."""


@dataclass(frozen=True)
class Noisy:
    """y = f(x) + σ e for each output, e Gaussian or Student's t; log σ is learnt.

    Args:
        outputs: the number of outputs m.
        noise: σ of "each" output, "shared" by all, or a function of the "input", for which the network has m further
            outputs.
        heavy_tails: Student's t with learnt degrees of freedom ν > 2, instead of a Gaussian.
        first_noise: log σ ~ N(log first_noise, width²).
        width: see `first_noise`; 0 fixes σ.
    """

    outputs: int
    noise: NoiseKind = "each"
    heavy_tails: bool = False
    first_noise: float = FIRST_NOISE
    width: float = NOISE_WIDTH

    def __post_init__(self) -> None:
        check_positive("first_noise", self.first_noise)
        if self.outputs < 1:
            raise ValueError(f"outputs: {self.outputs}; give the number of outputs")
        if not (np.isfinite(self.width) and self.width >= 0):
            raise ValueError(f"width: {self.width} is not a standard deviation; give a number ≥ 0, 0 for a fixed σ")

    @property
    def network_outputs(self) -> int:
        """Twice as many where the network also gives log σ."""
        return 2 * self.outputs if self.noise == "input" else self.outputs

    def start(self, dtype: str) -> dict[str, np.ndarray]:
        """The prior's centre."""
        # Of NumPy: an operation of JAX outside `jit` would be compiled by itself.
        own = {}
        if self.width > 0:
            own["log_noise"] = np.full(() if self.noise == "shared" else (self.outputs,), self._centre, dtype)
        if self.heavy_tails:
            own["log_tail"] = np.full((), TAIL_CENTRE, dtype)
        return own

    @property
    def _centre(self) -> float:
        return float(np.log(self.first_noise))

    def log_prior(self, own: Own) -> Scalar:
        """Of log σ, and of log(ν − 2), those of them that are given."""
        terms = []
        if "log_noise" in own:
            terms.append(jnp.sum(((own["log_noise"] - self._centre) / self.width) ** 2))
        if "log_tail" in own:
            terms.append((own["log_tail"] - TAIL_CENTRE) ** 2)
        return -0.5 * sum(terms, start=no_prior())

    def observe(self, own: Own, raw: jax.Array) -> Observed:
        """Location, scale and degrees of freedom of every observation."""
        location, logarithm = self._split(own, raw)
        degrees = 2 + jnp.exp(own["log_tail"]) if self.heavy_tails else jnp.asarray(jnp.inf, raw.dtype)
        return Observed(location, jnp.exp(logarithm), degrees)

    def _split(self, own: Own, raw: jax.Array) -> tuple[jax.Array, jax.Array]:
        """f and log σ, both (example, output)."""
        location = raw[:, : self.outputs]
        logarithm = own["log_noise"] if self.width > 0 else jnp.asarray(self._centre)
        if self.noise == "input":
            logarithm = logarithm[None] + INPUT_NOISE * raw[:, self.outputs :]
        return location, jnp.broadcast_to(logarithm, location.shape).astype(raw.dtype)

    def log_likelihood(self, own: Own, raw: jax.Array, y: jax.Array) -> jax.Array:
        """The sum over the outputs."""
        location, logarithm = self._split(own, raw)
        z = (y - location) * jnp.exp(-logarithm)
        if not self.heavy_tails:
            return jnp.sum(-0.5 * z**2 - logarithm - 0.5 * float(np.log(2 * np.pi)), axis=1)
        nu = 2 + jnp.exp(own["log_tail"])
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * jnp.log(nu * jnp.pi)
        return jnp.sum(constant - (nu + 1) / 2 * jnp.log1p(z**2 / nu) - logarithm, axis=1)


@dataclass(frozen=True)
class RelativeL2:
    """The paper's loss as a tempered likelihood: log p(y_i | θ) = −(‖F(x_i) − y_i‖₂ / ‖y_i‖₂) / temperature.

    This is not a normalised density of y: there is no observation noise, and `temperature` sets the width of the
    posterior, about the relative error of one example. Targets must not be zero everywhere. With `units`, a centre and
    a scale for each output, F = centre + scale × the network's output.
    """

    outputs: int
    temperature: float
    units: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    @property
    def network_outputs(self) -> int:
        """One for each output."""
        return self.outputs

    def start(self, dtype: str) -> dict[str, np.ndarray]:
        """No parameters."""
        return {}

    def log_prior(self, own: Own) -> Scalar:
        """No parameters."""
        return no_prior()

    def observe(self, own: Own, raw: jax.Array) -> Observed:
        """Without noise."""
        return Observed(raw, jnp.zeros_like(raw), jnp.asarray(jnp.inf, raw.dtype))

    def log_likelihood(self, own: Own, raw: jax.Array, y: jax.Array) -> jax.Array:
        """−‖F − y‖ / (‖y‖ temperature)."""
        if self.units is not None:
            centre, scale = (jnp.asarray(np.asarray(part, raw.dtype)) for part in self.units)
            raw = centre[None] + scale[None] * raw
        difference = raw - y
        tiny = jnp.finfo(difference.dtype).tiny  # the root has no slope at zero
        error = jnp.sqrt(jnp.sum(difference**2, axis=1) + tiny)
        return -error / (jnp.linalg.norm(y, axis=1) * self.temperature)


@dataclass(frozen=True)
class Categorical:
    """Softmax over classes; of two classes a single logit (Bernoulli)."""

    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes: {self.classes}; give at least 2")

    @property
    def network_outputs(self) -> int:
        """The number of logits."""
        return self.classes if self.classes > 2 else 1

    def start(self, dtype: str) -> dict[str, np.ndarray]:
        """No parameters."""
        return {}

    def log_prior(self, own: Own) -> Scalar:
        """No parameters."""
        return no_prior()

    def log_probabilities(self, raw: jax.Array) -> jax.Array:
        """(example, class)."""
        if self.classes == 2:
            return jnp.concatenate([-jax.nn.softplus(raw), -jax.nn.softplus(-raw)], axis=1)
        return jax.nn.log_softmax(raw, axis=1)

    def log_likelihood(self, own: Own, raw: jax.Array, y: jax.Array) -> jax.Array:
        """log probability of the class with number y."""
        codes = jnp.round(y[:, :1]).astype(jnp.int32)
        return jnp.take_along_axis(self.log_probabilities(raw), codes, axis=1)[:, 0]
