"""The paper's regression: n = 100, p = 200, neighbouring predictors correlated at 0.946, β = (3, 1, 0, …), noise 3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw


def regression(seed):
    rng = np.random.default_rng(seed)
    places = np.arange(200)
    covariance = 0.8 ** (np.abs(places[:, None] - places[None, :]) / 4)
    x = rng.multivariate_normal(np.zeros(200), covariance, size=100, method="cholesky")
    return x, 3 * x[:, 0] + x[:, 1] + np.sqrt(3) * rng.normal(size=100)


def run(seed, steps):
    x, y = (jnp.asarray(part, jnp.float32) for part in regression(seed))
    target = rw.Posterior(rw.spike_and_slab(), rw.shared_noise(lambda w, batch: batch[1] - batch[0] @ w), (x, y))
    return rw.sample(
        jax.random.key(seed), rw.hasgld_sa(), target, jnp.zeros(200, jnp.float32), steps=steps, step_size=0.1,
        burn_in=steps // 2, progress=False,
    )  # fmt: skip


def check(seed, steps):
    """β₁ found, zeros left out; β₂, at 1.4 standard errors, is reported only."""
    result = run(seed, steps)
    (inclusion,) = result.inclusion_probabilities
    prior = result.final_states[0].prior
    print(
        f"seed {seed}: inclusion of β₁ {inclusion[0]:.3f}, of β₂ {inclusion[1]:.3f}, zeros below 0.5: "
        f"{int((inclusion[2:] < 0.5).sum())}, σ {float(prior.sigma):.2f}, δ {float(prior.delta):.4f}"
    )
    assert inclusion.dtype == np.float32
    assert inclusion[0] > 0.5
    assert (inclusion[2:] < 0.5).sum() >= 190
    assert 1.0 < prior.sigma < 2.2  # √3, and β₂'s part of the variance


def test_one_seed():
    check(0, 4_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_seeds(seed):
    check(seed, 20_000)
