"""The first three of the models in `numpyro_models`, written in PyMC."""

import numpy as np
import pymc as pm
from tests.models.numpyro_models import SCHOOLS, cases


def eight_schools():
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        school, error = pm.Data("school_index", np.arange(8)), pm.Data("error", np.array(SCHOOLS["error"]))
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta[school], error, observed=np.array(SCHOOLS["effect"]))
    return model


def varying_intercepts():
    (groups, x, count), y = cases()["varying intercepts"].args, cases()["varying intercepts"].kwargs["y"]
    with pm.Model(coords={"county": np.arange(count)}) as model:
        group, feature = pm.Data("group", groups), pm.Data("x", x)
        mu, tau, b = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2), pm.Normal("b", 0, 5)
        sigma = pm.Exponential("sigma", 1)
        z = pm.Normal("z", 0, 1, dims="county")
        pm.Normal("y", (mu + tau * z)[group] + b * feature, sigma, observed=y)
    return model


def poisson():
    case = cases()["poisson"]
    with pm.Model(coords={"feature": ["a", "b", "c"], "row": np.arange(600)}) as model:
        x, exposure = pm.Data("x", case.args[0], dims=("row", "feature")), pm.Data("exposure", case.args[1], dims="row")
        intercept, w = pm.Normal("intercept", 0, 2), pm.Normal("w", 0, 1, dims="feature")
        mean = pm.Deterministic("mean", pm.math.exp(intercept + x @ w) * exposure, dims="row")
        pm.Deterministic("total", mean.sum())
        pm.Poisson("count", mean, observed=case.kwargs["count"], dims="row")
    return model


MODELS = {"eight schools": eight_schools, "varying intercepts": varying_intercepts, "poisson": poisson}
