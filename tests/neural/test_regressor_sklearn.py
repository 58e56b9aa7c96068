"""scikit-learn's own checks of an estimator: a few always, all of them in the slow suite.

None is expected to fail. scikit-learn itself skips check_array_api_input unless SCIPY_ARRAY_API is set, and leaves out
those for classifiers, and for sample weights, which `fit` does not take.
"""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

import ridgewalk as rw

ALWAYS = {
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
}


def estimator():
    """As small as passes check_regressors_train (R² > 0.5), in float64: predictions are compared to 1e-7."""
    return rw.SurrogateRegressor(
        sampler="sgld",
        step_size=1e-10,
        dtype="float64",
        chains=1,
        optimiser_steps=200,
        learning_rate=0.01,
        steps=6,
        burn_in=2,
        draws=4,
    )


def parameters():
    for _, check in estimator_checks_generator(estimator(), legacy=True):
        name = check.func.__name__ if hasattr(check, "func") else check.__name__
        yield pytest.param(check, id=name, marks=[] if name in ALWAYS else [pytest.mark.slow])


@pytest.mark.parametrize("check", list(parameters()))
def test_check(check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=DeprecationWarning)
        check(estimator())
