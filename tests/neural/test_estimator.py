"""scikit-learn's own checks of both estimators: a few always, all of them in the slow suite.

None is expected to fail. scikit-learn itself skips check_array_api_input unless SCIPY_ARRAY_API is set, and leaves out
those for sample weights, which `fit` does not take.
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


SETTINGS = {
    "hidden": (20,),
    "sampler": "sgld",
    "step_size": 1e-10,
    "dtype": "float64",
    "chains": 1,
    "optimiser_steps": 200,
    "learning_rate": 0.05,
    "steps": 6,
    "burn_in": 2,
    "draws": 4,
}
"""As small as passes check_regressors_train (R² > 0.5), in float64: predictions are compared to 1e-7."""


def estimators():
    return rw.NeuralRegressor(**SETTINGS, recalibration="none"), rw.NeuralClassifier(**SETTINGS)


def parameters():
    for number, made in enumerate(estimators()):
        for _, check in estimator_checks_generator(made, legacy=True):
            name = check.func.__name__ if hasattr(check, "func") else check.__name__
            marks = [] if name in ALWAYS else [pytest.mark.slow]
            yield pytest.param(number, check, id=f"{type(made).__name__}-{name}", marks=marks)


@pytest.mark.parametrize(("number", "check"), list(parameters()))
def test_check(number, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=DeprecationWarning)
        check(estimators()[number])
