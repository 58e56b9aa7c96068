"""What is damaged: how each is made, once, and how it is read."""

import jax
import jax.numpy as jnp
import numpy as np

import ridgewalk as rw
from ridgewalk._io import unfinished_folders, working_folder
from ridgewalk.darcy import datasets as data_sets
from ridgewalk.darcy.grid import Grid
from ridgewalk.darcy.problems import VaryingPermeability, karhunen_loeve
from ridgewalk.sampling.reopen import open_finished

TARGET = rw.Density(lambda w: -0.5 * jnp.sum(w["a"] ** 2) - 0.5 * w["b"] ** 2)
START = {"a": jnp.zeros(3), "b": jnp.zeros(())}
PROBLEM = VaryingPermeability(karhunen_loeve(Grid(4, 5), 4), kappa_0=8.0)
PLAN = data_sets.Plan(samples=6, seed=1, block=2)


def run(folder, steps, **options):
    return rw.sample(
        jax.random.key(3), rw.sgld(), TARGET, START, steps=steps, step_size=0.1, chains=2, progress=False, **options
    )


class Run:
    """A checkpoint folder, with the draws in it; reading it is resuming the run."""

    def make(self, root):
        run(root, 40, checkpoint=root / "run", checkpoint_every=10)

    def read(self, root):
        result = run(root, 40, checkpoint=root / "run", checkpoint_every=10, resume=True)
        return [*jax.tree.leaves(result.positions), result.info.potential]


class Continued(Run):
    """The same, where the run goes on for more steps."""

    def read(self, root):
        result = run(root, 60, checkpoint=root / "run", checkpoint_every=10, resume=True)
        return [*jax.tree.leaves(result.positions), result.info.potential]


class Store:
    """A finished store of draws."""

    def make(self, root):
        run(root, 40, store=root / "draws.zarr")

    def read(self, root):
        found = open_finished(root / "draws.zarr")
        return [np.asarray(found[name][...]) for name in sorted(found)]


class Model:
    """A fitted model."""

    def make(self, root):
        x = np.linspace(-1, 1, 30)[:, None]
        model = rw.NeuralRegressor(
            hidden=(4,),
            sampler="sgld",
            step_size=1e-5,
            optimiser_steps=20,
            steps=30,
            burn_in=10,
            draws=6,
            chains=2,
            holdout=0.2,
        )
        model.fit(x, np.sin(3 * x))
        model.save(root / "model")

    def read(self, root):
        model = rw.NeuralRegressor.load(root / "model")
        fitted = model._fitted
        parts = (*fitted.draws, *fitted.inputs, *fitted.outputs, fitted.correction.scores)
        text = (
            f"{model.report_} {model.get_params()} {fitted.correction.scale} {fitted.input_shape} {fitted.output_shape}"
        )
        return [*parts, np.frombuffer(text.encode(), np.uint8)]


def lay_out(root):
    growing = working_folder(root / "data.zarr")
    for block in data_sets.begin(growing, PROBLEM, PLAN):
        if block < 2 or root.name == "dataset":
            data_sets.write_block(growing, PLAN, block, PROBLEM.draw(PLAN.seed, PLAN.blocks[block]))
    return growing


class DataSet:
    """A Darcy data set."""

    def make(self, root):
        data_sets.finish(lay_out(root), root / "data.zarr")

    def read(self, root):
        data = data_sets.load(root / "data.zarr")
        text = f"{data.grid} {data.attributes}"
        return [*(data.arrays[name] for name in sorted(data.arrays)), np.frombuffer(text.encode(), np.uint8)]


class Growing:
    """A Darcy data set whose generation was interrupted; reading it is going on."""

    def make(self, root):
        lay_out(root)

    def read(self, root):
        (growing,) = unfinished_folders(root / "data.zarr")
        for block in data_sets.begin(growing, PROBLEM, PLAN):
            data_sets.write_block(growing, PLAN, block, PROBLEM.draw(PLAN.seed, PLAN.blocks[block]))
        data_sets.finish(growing, root / "data.zarr")
        return DataSet().read(root)


ALL = {
    "run": Run(),
    "continued": Continued(),
    "store": Store(),
    "model": Model(),
    "dataset": DataSet(),
    "growing": Growing(),
}
