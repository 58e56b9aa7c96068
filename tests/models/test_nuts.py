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


@pytest.mark.slow
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
    """With control variates, from a mode: that of varying intercepts is far from the mean."""
    target = target_of(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "find_mode: the posterior mean", UserWarning)
        mode = rw.find_mode(jax.random.key(0), target)
    estimator = rw.control_variates(target, mode)
    assert_agrees(compared(name, run(name, estimator, mode, steps=20_000, batch_size=BATCHES[name])))


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
