import jax
import pytest


@pytest.fixture(autouse=True)
def as_numpyro_expects():
    """Its distributions promote ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield
