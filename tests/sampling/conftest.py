"""Runs of this folder are short and compile for longer than they run: default tests compile without optimisation."""

import pytest

from ridgewalk import _compilation

UNOPTIMISED = (("xla_cpu_use_fusion_emitters", False), ("xla_backend_optimization_level", 0))


@pytest.fixture(autouse=True)
def compiled_without_optimisation(request):
    """Slow tests compile as users do."""
    slow = request.node.get_closest_marker("slow") is not None
    token = _compilation._current.set(() if slow else UNOPTIMISED)
    yield
    _compilation._current.reset(token)
