"""What the studies compare samplers by, against answers known beforehand."""

import numpy as np
import pytest

from ridgewalk.studies.framework.comparison import condition, covariance_error, slowest_time, slug


def test_the_slowest_parameter_is_timed():
    """An AR(1) chain has autocorrelation time (1 + ρ) / (1 − ρ); time in interleaved chains counts the steps of all."""
    rng = np.random.default_rng(0)
    rho, length = 0.9, 20_000
    noise = rng.normal(size=(4, length))
    slow = np.zeros((4, length))
    for k in range(1, length):
        slow[:, k] = rho * slow[:, k - 1] + np.sqrt(1 - rho**2) * noise[:, k]
    draws = np.stack([noise, slow], axis=2)
    time, se = slowest_time(draws)
    assert time == pytest.approx(19, rel=0.15)
    assert 0 < se < 3
    both = slow.reshape(2, 2, length).transpose(0, 2, 1).reshape(2, 2 * length, 1)
    assert slowest_time(both, 2)[0] == pytest.approx(19, rel=0.2)


def test_errors_of_a_known_covariance():
    hessian = np.diag([1.0, 4.0])
    draws = np.random.default_rng(1).normal(size=(100_000, 2)) * [1, 0.5]
    assert covariance_error(draws, hessian) < 0.02
    assert covariance_error(2 * draws, hessian) == pytest.approx(np.log(4), abs=0.02)
    assert condition(np.diag([1.0, 0.25]), hessian) == pytest.approx(1)
    assert condition(np.eye(2), hessian) == pytest.approx(4)


def test_names_become_file_names():
    assert slug("HASGLD-SA, dense, base γ⁻¹I") == "hasgld-sa-dense-base-scaled-identity"
    assert slug("HASGLD-SA, M=2, as printed") == "hasgld-sa-m-2-as-printed"
