"""Six models of NumPyro, and three of them from PyMC, through `rw.auto()` and `to_arviz()`, against NUTS."""

import warnings

import jax
import numpy as np
import pytest
from tests.models.numpyro_models import REFERENCE, agreement, cases

import ridgewalk as rw

CASES = cases()
STEPS = {"network": 60_000, "varying intercepts": 20_000}
"""Of each of four chains; 10,000 of the others."""
BATCHES = {"varying intercepts": 500, "poisson": 100, "robust": 100, "item response": 120}
"""Of 5,000, 600, 600 and 480 rows. Of eight rows there are no minibatches; those of the network are too noisy."""


def target_of(name):
    case = CASES[name]
    return rw.from_numpyro(case.model, *case.args, **case.kwargs)


def needs_reference(name):
    with np.load(REFERENCE) as stored:
        if f"{name}/potential" not in stored:
            pytest.skip(f"no reference of NUTS is stored; python benchmarks/zoo_reference.py models '{name}' makes it")


def compared(name, result):
    """Every site, as ArviZ gets it, and the mean potential where it is that of all rows."""
    posterior = result.to_arviz()["posterior"]
    draws = {str(site).replace("net_", "net/"): values.to_numpy() for site, values in posterior.data_vars.items()}
    potentials = np.nan if result.batch_size else np.asarray(result.info.potential)
    return agreement(name, draws, potentials)


def assert_agrees(found):
    assert found.z <= 0.25, found
    assert 0.85 <= found.sd_low <= found.sd_high <= 1.15, found
    assert not found.potential_z > 0.25, found


def run(name, target, position=None, **options):
    options = {"steps": 10_000, "chains": 4, "progress": False} | options
    return rw.sample(jax.random.key(1), rw.auto(), target, position, **options)


def test_a_model_agrees_with_nuts():
    """The Poisson regression, which compiles quickly; all others are slow."""
    assert_agrees(compared("poisson", run("poisson", target_of("poisson"), steps=5_000)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_of_numpyro_agree_with_nuts(name):
    """With all rows in every step, from the starts of the model."""
    needs_reference(name)
    assert_agrees(compared(name, run(name, target_of(name), steps=STEPS.get(name, 10_000))))


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_minibatches_agree_with_nuts(name):
    """With control variates at a mode; where `find_mode` warns that the mean is far from it, at the mean of a short run
    from the mode, as the warning says: at the mode of varying intercepts they reduce no noise, and chains are slow."""
    target, batch = target_of(name), BATCHES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        centre = rw.find_mode(jax.random.key(0), target)
    assert all("centre control variates at a posterior mean from a short run" in str(one.message) for one in caught)
    assert caught or name != "varying intercepts"
    if caught:
        short = run(name, target, centre, steps=3_000, batch_size=batch)
        centre = jax.tree.map(lambda x: np.asarray(x)[:, -1_000:].mean((0, 1)), short.positions)
    estimator = rw.control_variates(target, centre)
    assert_agrees(compared(name, run(name, estimator, centre, steps=20_000, batch_size=batch)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize("name", ["eight schools", "varying intercepts", "poisson"])
def test_models_of_pymc_agree_with_nuts(name):
    """With the references of the same models in NumPyro; deterministic sites that only one of them has are left out."""
    pytest.importorskip("pymc")
    from tests.models.pymc_models import MODELS

    result = run(name, rw.from_pymc(MODELS[name]()), steps=STEPS.get(name, 10_000))
    draws = {site: np.asarray(values) for site, values in result.posterior.items() if site != "total"}
    assert_agrees(agreement(name, draws, np.asarray(result.info.potential)))
    assert set(draws) <= {str(site) for site in result.to_arviz()["posterior"].data_vars}
