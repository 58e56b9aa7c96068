"""The automatic step size is the promised share of what is stable, whatever G a sampler starts from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.surrogates.step_rule import stable_step_size

SAMPLERS = {
    "sgld": rw.sgld(),
    "psgld": rw.psgld(),
    "psgld, told": rw.psgld(second_moment=jnp.array([1e6, 1e4, 1.0])),
    "dense": rw.hasgld_sa(form="dense"),
    "dense, told": rw.hasgld_sa(form="dense", first_curvature=10.0),
    "low rank": rw.Sampler(rw.Langevin(), rw.LowRank(rank=1, spare=1)),
    "limited": rw.hasgld_sa(form="limited"),
    "rescaled": rw.Sampler(rw.Langevin(), rw.rescaled(rw.Limited(), jnp.array([0.01, 0.1, 1.0]))),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_share_of_the_stable_step_size(name):
    x = jax.random.normal(jax.random.key(0), (64, 3)) * jnp.array([[30.0, 3.0, 0.3]])
    target = rw.Posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, batch: -0.5 * (batch[1] - batch[0] @ w) ** 2, (x, x[:, 0])
    )
    mode = jnp.array([1.0, 0.0, 0.0])
    hessian = np.asarray(x.T @ x + jnp.eye(3))
    begun = np.asarray(rw.preconditioner_matrix(rw.build_kernel(SAMPLERS[name], target).init(mode)))
    largest = np.abs(np.linalg.eigvals(begun @ hessian)).max()
    step_size = stable_step_size(SAMPLERS[name], target, mode, 16)
    assert step_size * largest == pytest.approx(0.1 * 2 * 16 / 64, rel=0.02)
