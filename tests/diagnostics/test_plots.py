"""Plots of a run."""

import matplotlib as mpl
import numpy as np
import pytest
from tests.diagnostics.runs import tree_run

from ridgewalk.diagnostics.plots import highest_density_interval

mpl.use("Agg")


@pytest.mark.parametrize("plot", ["plot_trace", "plot_autocorrelation", "plot_pairs", "plot_posterior", "plot_steps"])
def test_plots_are_drawn(plot, tmp_path):
    from matplotlib import pyplot

    result = tree_run(steps=300)
    axes = np.ravel(getattr(result, plot)(**({} if plot == "plot_steps" else {"max_parameters": 3})))
    figure = next(axis for axis in axes if axis is not None).figure
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000
    pyplot.close(figure)


def test_plots_take_names():
    from matplotlib import pyplot

    result = tree_run(steps=300)
    axes = result.plot_trace(["w[1,2]", "b"])
    assert [axis.get_title() for axis in axes[:, 0]] == ["w[1,2]", "b"]
    pyplot.close(axes[0, 0].figure)
    for names, message in ((["nothing"], "there is no 'nothing'"), (["w[5,5]"], r"shape of 'w' is \(2, 3\)")):
        with pytest.raises(ValueError, match=message):
            result.plot_trace(names)
    with pytest.raises(ValueError, match="at least two"):
        result.plot_pairs(["b"])


def test_highest_density_interval_of_an_exponential_starts_at_0():
    values = -np.log1p(-np.linspace(0, 1, 20_001)[:-1])
    low, high = highest_density_interval(values, 0.9)
    assert low == 0
    assert high == pytest.approx(np.log(10), rel=1e-3)
