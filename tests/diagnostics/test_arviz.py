"""Conversion to ArviZ, and the pointwise log likelihood."""

import subprocess
import sys

import arviz_stats
import numpy as np
import pytest
import xarray
from tests.diagnostics.runs import REGRESSION, healthy, tree_run

import ridgewalk as rw
from ridgewalk.diagnostics import arviz, draw_access


def test_data_tree(monkeypatch):
    monkeypatch.setattr(draw_access, "MAX_BLOCK_NUMBERS", 700 * (3 + 150))
    monkeypatch.setattr(arviz, "EXAMPLE_BLOCK", 150)
    result = healthy("sgld, control variates")
    data = result.to_arviz(log_likelihood=True, observed_data=True)
    assert isinstance(data, xarray.DataTree)
    assert set(data.children) == {"posterior", "sample_stats", "log_likelihood", "observed_data"}
    np.testing.assert_array_equal(data["posterior"]["position"], result.positions)
    np.testing.assert_array_equal(data["sample_stats"]["lp"], -result.info.potential)
    assert set(data["sample_stats"].data_vars) == {
        "lp", "gradient_norm", "noise_norm", "temperature", "damping", "rejected", "step_size", "diverging",
    }  # fmt: skip
    assert not data["sample_stats"]["diverging"].any()
    np.testing.assert_array_equal(data["observed_data"]["y"], REGRESSION.target.data["y"])
    values = data["log_likelihood"]["log_likelihood"]
    assert values.shape == (4, 1400, 400)
    x, y = (np.asarray(REGRESSION.target.data[name]) for name in ("x", "y"))
    np.testing.assert_allclose(values, -0.5 * (y - np.asarray(result.positions) @ x.T) ** 2, rtol=1e-8, atol=1e-12)
    loo = arviz_stats.loo(data)
    density = np.log(np.exp(values).mean(("chain", "draw"))).sum().item()
    waic = density - values.var(("chain", "draw")).sum().item()
    assert loo.elpd == pytest.approx(waic, abs=0.1)
    assert loo.p == pytest.approx(3, abs=0.8)  # three parameters


def test_log_likelihood_needs_examples():
    with pytest.raises(ValueError, match="a Density has no examples"):
        rw.pointwise_log_likelihood(tree_run())


def test_a_position_that_is_a_tuple_and_its_tuple_of_data_get_names():
    result = healthy("sgld, minibatch")
    data = result.to_arviz(observed_data=True)
    assert data["observed_data"]["x"].dims == ("example", "x_dim_1")
    assert data["posterior"].attrs["inference_library"] == "ridgewalk"


def test_diagnostics_do_not_import_the_arviz_meta_package():
    """ArviZ 0.x (which PyMC 5 needs) and ArviZ 1 (PyMC 6) may stand beside arviz-base."""
    code = (
        "import sys; sys.modules['arviz'] = None\n"
        "import jax, jax.numpy as jnp, ridgewalk as rw\n"
        "target = rw.Density(lambda x: -0.5 * jnp.sum(x**2))\n"
        "run = rw.sample(jax.random.key(0), rw.sgld(), target, jnp.zeros(2), steps=50, step_size=0.1, progress=False)\n"
        "run.summary(); run.check(); print(type(run.to_arviz()).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "DataTree"


@pytest.mark.filterwarnings("ignore")
def test_a_tree_becomes_the_data_of_arviz_beside_pymc():
    """With PyMC 5 as docs/diagnosing.md says, with PyMC 6 as it is."""
    arviz = pytest.importorskip("arviz")
    result = healthy("sgld, minibatch")
    data = result.to_arviz()
    if arviz.__version__.startswith("0."):
        data = arviz.InferenceData(**{name: group.to_dataset() for name, group in data.children.items()})
    ours = result.summary()
    np.testing.assert_allclose(arviz.ess(data)["position"], ours["ess_bulk"], rtol=1e-3)
