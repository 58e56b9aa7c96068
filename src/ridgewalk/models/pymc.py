"""`from_pymc`: a PyMC model as a target, through PyMC's JAX backend.

PyTensor graphs of the log density of every variable become JAX functions, with the observed values and `pm.Data` as
inputs. Which of them have rows, and that rows do not depend on each other, is found on a few rows.
"""

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk._validation import requires_extra
from ridgewalk.data import Batches
from ridgewalk.models import FULL_DATA, Terms, check_independent, close, refuse_ambiguous, trial_rows
from ridgewalk.target import Density, Posterior, Target, finite_start

JITTER = 1.0
"""Starts are PyMC's initial point plus uniform numbers in ±JITTER, unconstrained, as with `pm.sample`."""

WRONG_SHAPES = (TypeError, ValueError, IndexError, OverflowError)
"""Errors of a graph whose inputs do not fit each other; PyTensor may hold a number of rows in too short an integer."""

NOT_OURS = ("PyTensor could not link to a BLAS", "Explicitly requested dtype", "\nArviZ is undergoing a major refactor")
"""Beginnings of warnings of PyTensor, JAX and ArviZ about their own installation and precision."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings that are not about the model."""
    with warnings.catch_warnings():
        for beginning in NOT_OURS:
            warnings.filterwarnings("ignore", message=beginning)
        yield


@contextmanager
def _undisturbed() -> Iterator[None]:
    """`_quiet`, and JAX's settings are put back: importing PyMC's JAX backend changes them."""
    flags, double = os.environ.get("XLA_FLAGS"), bool(jax.config.read("jax_enable_x64"))
    try:
        with _quiet():
            yield
    finally:
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
        if bool(jax.config.read("jax_enable_x64")) != double:
            jax.config.update("jax_enable_x64", double)


def _jax_function(inputs: list[Any], outputs: list[Any]) -> Callable[..., Any]:
    """A PyTensor graph as a JAX function; shared variables become constants."""
    with requires_extra("pymc"):
        from pymc.sampling.jax import get_jaxified_graph  # noqa: PLC0415
    _widen_ranges(outputs)
    return get_jaxified_graph(inputs=inputs, outputs=outputs)


def _widen_ranges(outputs: list[Any]) -> None:
    """Give ranges in a graph bounds of 64 bits, in place: PyTensor has 0 and 1 in eight, which overflow above 127 rows.

    `pm.Categorical` and what is made of it, such as `pm.OrderedLogistic`, have ranges over the rows.
    """
    with requires_extra("pymc"):
        import pytensor.tensor as pt  # noqa: PLC0415
        from pytensor.graph.basic import Constant  # noqa: PLC0415
        from pytensor.graph.traversal import ancestors  # noqa: PLC0415
        from pytensor.tensor.basic import ARange  # noqa: PLC0415

    def wide(bound: Any) -> Any:
        is_whole = isinstance(bound, Constant) and np.issubdtype(np.asarray(bound.data).dtype, np.integer)
        return pt.constant(bound.data, dtype="int64") if is_whole else bound

    ranges = {one.owner for one in ancestors(outputs) if one.owner is not None and isinstance(one.owner.op, ARange)}
    for node in ranges:
        node.inputs[:] = [wide(bound) for bound in node.inputs]


class Compiled:
    """A `pm.Model` and its JAX functions, of unconstrained values and then the inputs; each gives a list.

    A plain class, which checkpoints do not describe: they describe the graph.
    """

    def __init__(self, source: Any, terms: Callable[..., Any], shown: Callable[..., Any]) -> None:
        self.source = source
        self.terms = terms  # log densities of free variables, observed variables and potentials, elementwise
        self.shown = shown  # free variables, constrained, and deterministic ones


@dataclass(frozen=True, eq=False)
class PyMCModel:
    """A PyMC model as a function of unconstrained positions and batches of rows."""

    compiled: Compiled
    description: str
    """The graph of the log density, by which a resumed run knows the model."""
    constants: tuple[np.ndarray, ...]
    """The constants of this graph."""
    free: tuple[str, ...]
    observed: tuple[str, ...]
    """Observed variables and potentials."""
    deterministic: tuple[str, ...]
    values: Mapping[str, Any]
    """The value of every input: all rows, or a few as an example for those of `row_names`."""
    first: PyTree
    """PyMC's initial point, unconstrained, by variable."""
    row_names: tuple[str, ...] = ()
    """The inputs that have rows."""
    with_rows: tuple[str, ...] = ()
    """The observed variables and potentials that have rows."""
    steady: tuple[str, ...] = ()
    """Deterministic variables that do not depend on the rows."""
    of_all_rows: tuple[str, ...] = ()
    """Deterministic variables that depend on the rows but do not have them as an axis."""
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)

    def example(self) -> dict[str, Any]:
        """The rows that stand in where none are needed."""
        return {name: self.values[name] for name in self.row_names}

    def _call(self, function: Callable[..., Any], position: PyTree, rows: Mapping[str, Any]) -> list[Any]:
        inputs = {**self.values, **rows}
        values = [jnp.asarray(position[name]) for name in self.free]
        with _quiet():
            return list(function(*values, *(jnp.asarray(value) for value in inputs.values())))

    def elementwise(self, position: PyTree, rows: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Log densities by variable."""
        found = self._call(self.compiled.terms, position, rows)
        return dict(zip((*self.free, *self.observed), found, strict=True))

    def log_prior(self, position: PyTree) -> Scalar:
        """The variables without rows."""
        terms = self.elementwise(position, self.example())
        return sum((jnp.sum(term) for name, term in terms.items() if name not in self.with_rows), start=jnp.zeros(()))

    def log_likelihood(self, position: PyTree, batch: Mapping[str, Any]) -> jax.Array:
        """The variables with rows, one value per row."""
        terms = self.elementwise(position, batch)
        return sum((_by_row(terms[name]) for name in self.with_rows), start=jnp.zeros(()))

    def log_density(self, position: PyTree) -> Scalar:
        """All variables."""
        return sum((jnp.sum(term) for term in self.elementwise(position, {}).values()), start=jnp.zeros(()))

    def constrain(self, position: PyTree, data: PyTree) -> dict[str, Any]:
        """Free and deterministic variables; those that need all rows are left out where the data are not in memory."""
        whole = bool(self.of_all_rows) and data is not None and not isinstance(data, Batches)
        found = self._call(self.compiled.shown, position, data if whole else self.example())
        values = dict(zip((*self.free, *self.deterministic), found, strict=True))
        return {name: values[name] for name in (*self.free, *self.steady, *(self.of_all_rows if whole else ()))}

    def start(self, key: Key, target: Target) -> PyTree:
        """PyMC's initial point with jitter, of finite density."""
        return finite_start(key, target, self._draw_start)

    def _draw_start(self, key: Key) -> PyTree:
        keys = dict(zip(self.first, jax.random.split(key, len(self.first)), strict=True))
        return {
            name: jnp.asarray(value) + jax.random.uniform(keys[name], np.shape(value), None, -JITTER, JITTER)
            for name, value in self.first.items()
        }

    def predictive(self, result: Any, key: Key | None, args: Any, kwargs: Any) -> dict[str, np.ndarray]:
        """Draws of the observed variables by `pm.sample_posterior_predictive`, with new values of `pm.Data`."""
        if args:
            raise ValueError("predictive: a PyMC model has no arguments; pass new values of its pm.Data by name")
        with requires_extra("pymc"):
            import pymc  # noqa: PLC0415
            import xarray  # noqa: PLC0415
            from pymc.model.transform.optimization import freeze_dims_and_data  # noqa: PLC0415
        posterior = xarray.Dataset(
            {
                name: (("chain", "draw", *(f"{name}_{i}" for i in range(draws.ndim - 2))), draws)
                for name, draws in result.posterior.items()
                if name in self.free
            }
        )
        seed = int(jax.random.bits(jax.random.key(0) if key is None else key, dtype="uint32"))
        with _undisturbed(), _new_data(self.compiled.source, kwargs):
            found = pymc.sample_posterior_predictive(
                posterior,
                model=freeze_dims_and_data(self.compiled.source),
                random_seed=seed,
                progressbar=False,
                return_inferencedata=False,
            )
        return {name: np.asarray(value) for name, value in found.items()}


def _by_row(term: jax.Array) -> jax.Array:
    return jnp.sum(term.reshape(term.shape[0], -1), axis=1)


@contextmanager
def _new_data(source: Any, new: Mapping[str, Any]) -> Iterator[None]:
    """The model with other values of its `pm.Data`, which are put back."""
    with requires_extra("pymc"):
        import pymc  # noqa: PLC0415
    known = {variable.name: variable for variable in source.data_vars}
    for name in new:
        if name not in known:
            raise ValueError(f"predictive: {name!r} is no pm.Data of the model; those are {', '.join(known) or 'none'}")
    old = {name: known[name].get_value() for name in new}
    coords = dict(source.coords)
    changed: dict[str, Any] = {}
    for name, value in new.items():
        for axis, dim in enumerate(source.named_vars_to_dims.get(name, ())):
            length = np.shape(value)[axis]
            if dim is not None and coords.get(dim) is not None and len(coords[dim]) != length:
                changed[dim] = range(length)
    try:
        pymc.set_data(dict(new), model=source, coords=changed)
        yield
    finally:
        pymc.set_data(old, model=source, coords={dim: coords[dim] for dim in changed})


def from_pymc(model: Any, *, data: Sequence[str] | str | None = None) -> Any:
    """A PyMC model as a target, for `sample`, `find_mode`, `control_variates` and all others.

    The rows are those of the observed values. Observed values, and `pm.Data` with as many rows, are the data, of which
    minibatches are drawn; everything else is constant. Positions are dictionaries by variable, unconstrained by PyMC's
    transforms; `result.posterior`, summaries and `to_arviz()` are constrained, with the model's dims and coords, and
    include deterministic variables that do not have the rows as an axis.

        with pm.Model() as model:
            x = pm.Data("x", features)
            …
            pm.Normal("y", x @ w, sigma, observed=y)
        posterior = rw.from_pymc(model)
        result = rw.sample(key, rw.auto(), posterior, steps=10_000, batch_size=500)
        predictions = posterior.predictive(result, x=new_features)

    Chains start at PyMC's initial point with jitter. JAX's precision is that of the user: call
    `jax.config.update("jax_enable_x64", True)` for double.

    Args:
        model: a `pm.Model`.
        data: names of the observed variables and `pm.Data` that have rows, where the rule above is ambiguous; `()` for
            none, which gives a `Density`: all data in every step.
    """
    with _undisturbed(), requires_extra("pymc"):
        import pymc  # noqa: PLC0415
    if not isinstance(model, pymc.Model):
        raise ValueError(f"model: {type(model).__name__} is not a pm.Model; pass the model, not its variables")
    _check_variables(model)
    inputs = _inputs(model)
    with _undisturbed():
        whole = _build(model, inputs)
    names = None if data is None else ((data,) if isinstance(data, str) else tuple(data))
    if names == ():
        shown = replace(whole, steady=whole.deterministic)
        return Density(shown.log_density, model=_with_dims(shown, model))
    doubtful = tuple(name for name, one in inputs.items() if not one.observed)
    found = _Trial(whole, _row_count(inputs, names)).find(names, doubtful)
    rows = {name: jnp.asarray(whole.values[name]) for name in found.row_names}
    return Posterior(found.log_prior, found.log_likelihood, rows, model=_with_dims(found, model))


def _check_variables(model: Any) -> None:
    if not model.observed_RVs:
        listed = ", ".join(variable.name for variable in model.basic_RVs) or "none"
        raise ValueError(
            f"model: no variable is observed (its variables are {listed}); give the data to one of them, observed=y"
        )
    if not model.free_RVs:
        raise ValueError("model: it has no free variables, so there is nothing to sample; add priors")
    for variable in model.free_RVs:
        if np.dtype(variable.dtype).kind != "f":
            raise ValueError(
                f"model: the variable {variable.name!r} is discrete; sum over its values in the model, for example by "
                "pm.Mixture, or by marginalize of pymc-extras"
            )


class Input(NamedTuple):
    """A part of the model that may have rows."""

    value: np.ndarray
    variable: Any
    """The shared variable of `pm.Data`; None for observed values that are a constant."""
    observed: bool


def _inputs(model: Any) -> dict[str, Input]:
    """Observed values that are constants, and `pm.Data`, by name; arrays with at least one axis."""
    with requires_extra("pymc"):
        from pytensor.graph.traversal import graph_inputs  # noqa: PLC0415
    found = {}
    for variable in model.observed_RVs:
        value = model.rvs_to_values[variable]
        if hasattr(value, "data") and np.ndim(value.data):
            found[variable.name] = Input(np.asarray(value.data), None, True)
    observed = set(graph_inputs([model.rvs_to_values[variable] for variable in model.observed_RVs]))
    for variable in model.data_vars:
        if hasattr(variable, "get_value") and np.ndim(variable.get_value()):
            found[variable.name] = Input(np.asarray(variable.get_value()), variable, variable in observed)
    return found


def _build(model: Any, inputs: Mapping[str, Input]) -> PyMCModel:
    """The model in JAX, as a function of its values and of all inputs, whose rows may be any number."""
    with requires_extra("pymc"):
        import pytensor.tensor as pt  # noqa: PLC0415
        from pymc.distributions.shape_utils import change_dist_size  # noqa: PLC0415
        from pymc.logprob.basic import transformed_conditional_logp  # noqa: PLC0415
        from pytensor.graph.basic import Constant  # noqa: PLC0415
        from pytensor.graph.replace import clone_replace  # noqa: PLC0415
        from pytensor.graph.traversal import graph_inputs  # noqa: PLC0415
        from pytensor.printing import debugprint  # noqa: PLC0415

    symbols = {
        name: pt.tensor(f"{name}_rows", dtype=str(one.value.dtype), shape=(None, *one.value.shape[1:]))
        for name, one in inputs.items()
    }
    basic = list(model.free_RVs)
    values = {variable: model.rvs_to_values[variable] for variable in basic}
    transforms = {variable: model.rvs_to_transforms[variable] for variable in basic}
    for variable in model.observed_RVs:
        value = symbols.get(variable.name, model.rvs_to_values[variable])
        axes = range(variable.ndim - variable.owner.op.ndim_supp)
        resized = change_dist_size(variable, tuple(value.shape[axis] for axis in axes))  # it had the size of all rows
        basic.append(resized)
        values[resized], transforms[resized] = value, None
    densities = transformed_conditional_logp(basic, rvs_to_values=values, rvs_to_transforms=transforms)
    potentials = model.replace_rvs_by_values(model.potentials)
    shown = model.replace_rvs_by_values([*model.free_RVs, *model.deterministics])
    data = {one.variable: symbols[name] for name, one in inputs.items() if one.variable is not None}
    graphs = clone_replace([*densities, *potentials, *shown], replace=data)
    terms, shown = graphs[: len(basic) + len(potentials)], graphs[len(basic) + len(potentials) :]
    arguments = [model.rvs_to_values[variable] for variable in model.free_RVs] + list(symbols.values())
    first = model.initial_point()
    return PyMCModel(
        compiled=Compiled(model, _jax_function(arguments, terms), _jax_function(arguments, shown)),
        description=str(debugprint(terms, file="str")),
        constants=tuple(np.asarray(one.data) for one in graph_inputs(terms) if isinstance(one, Constant)),
        free=tuple(variable.name for variable in model.free_RVs),
        observed=tuple(variable.name for variable in [*model.observed_RVs, *model.potentials]),
        deterministic=tuple(variable.name for variable in model.deterministics),
        values={name: one.value for name, one in inputs.items()},
        first={variable.name: first[model.rvs_to_values[variable].name] for variable in model.free_RVs},
    )


def _row_count(inputs: Mapping[str, Input], names: tuple[str, ...] | None) -> int:
    """N: the rows of the inputs that `data` names, or else of all observed variables."""
    described = ", ".join(f"{name} {one.value.shape}" for name, one in inputs.items()) or "none"
    if names is not None:
        for name in names:
            if name not in inputs:
                raise ValueError(f"data: {name!r} is neither observed nor pm.Data with an axis; those are {described}")
        sizes = {name: len(inputs[name].value) for name in names}
    else:
        sizes = {name: len(one.value) for name, one in inputs.items() if one.observed}
    listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
    if not sizes:
        raise ValueError(f"model: its observed values are single numbers, without rows; {FULL_DATA}")
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"data: numbers of rows differ ({listed}); name the observed variables and pm.Data of one of them in "
            f"data=…, which leaves the others to be evaluated in every step, or {FULL_DATA}"
        )
    return next(iter(sizes.values()))


class _Trial:
    """Runs of the model on a few rows."""

    def __init__(self, model: PyMCModel, size: int) -> None:
        self.model, self.size = model, size
        lengths = [length for value in (*model.values.values(), *model.first.values()) for length in np.shape(value)]
        self.first, self.second = trial_rows(size, lengths)
        self.position = model._draw_start(jax.random.key(0))

    def terms(self, names: tuple[str, ...], rows: np.ndarray) -> Terms:
        """Log densities with these inputs batched: by row where they have rows."""
        found = self.model.elementwise(self.position, {name: self.model.values[name][rows] for name in names})
        return {name: np.asarray(self._term(term)) for name, term in found.items()}

    def _term(self, term: jax.Array) -> jax.Array:
        return _by_row(term) if np.shape(term)[:1] == self.first.shape else jnp.sum(term)

    def try_terms(self, names: tuple[str, ...]) -> Terms | None:
        """`terms`, or None if the model does not work with these inputs batched."""
        try:
            found = self.terms(names, self.first)
        except WRONG_SHAPES:
            return None
        return found if any(term.ndim for term in found.values()) else None

    def find(self, names: tuple[str, ...] | None, doubtful: Collection[str]) -> PyMCModel:
        """The model with the rows of `names`, or else of all inputs with as many, if no `doubtful` one is ambiguous."""
        chosen = names or tuple(name for name, value in self.model.values.items() if len(value) == self.size)
        batched = self.try_terms(chosen)
        if names is None:
            refuse_ambiguous(chosen, [name for name in chosen if name in doubtful], self.size, batched, self.try_terms)
        if batched is None:
            raise ValueError(self._failed(chosen)) from self._error(chosen)
        with_rows = tuple(name for name in self.model.observed if batched[name].ndim)
        check_independent(batched, self.terms(chosen, self.second), with_rows)
        example = {name: self.model.values[name][self.first] for name in chosen}
        model = replace(self.model, values={**self.model.values, **example}, row_names=chosen, with_rows=with_rows)
        return self._with_deterministic(model)

    def _error(self, names: tuple[str, ...]) -> Exception | None:
        try:
            self.terms(names, self.first)
        except WRONG_SHAPES as error:
            return error
        return None

    def _failed(self, names: tuple[str, ...]) -> str:
        """Why the model may not work on a batch."""
        constants = [value.shape for value in self.model.constants if value.shape[:1] == (self.size,)]
        local = [name for name, value in self.model.first.items() if np.shape(value)[:1] == (self.size,)]
        problem = (
            f"model: it does not work on a batch of {len(self.first)} of the {self.size} rows of {', '.join(names)}"
        )
        if constants:
            shapes = ", ".join(map(str, constants))
            return (
                f"{problem}: it has constants with {self.size} rows (shapes {shapes}), which cannot be batched; wrap "
                f"them in pm.Data, for example x = pm.Data('x', features), or {FULL_DATA}"
            )
        if local:
            return (
                f"{problem}: the variable {local[0]!r} has one value per row, which minibatches cannot sample; "
                f"integrate it out, give it one value per group and index it by the rows (theta[group]), or {FULL_DATA}"
            )
        return f"{problem}: the rows of the observed values are not independent, or their number is fixed; {FULL_DATA}"

    def _with_deterministic(self, model: PyMCModel) -> PyMCModel:
        """Which deterministic variables depend on the rows; those that have them as an axis are not kept."""
        function = model.compiled.shown
        steady: list[str] = []
        of_all: list[str] = []
        one, two = (
            model._call(function, self.position, {name: self.model.values[name][rows] for name in model.row_names})
            for rows in (self.first, self.second)
        )
        for i, name in enumerate(model.deterministic, start=len(model.free)):
            if self.first.size in np.shape(one[i]):
                continue
            (steady if close(np.asarray(one[i]), np.asarray(two[i])) else of_all).append(name)
        return replace(model, steady=tuple(steady), of_all_rows=tuple(of_all))


def _with_dims(model: PyMCModel, source: Any) -> PyMCModel:
    """The names and labels of axes that the model gives."""
    shown = {*model.free, *model.steady, *model.of_all_rows}
    dims = {
        name: tuple(f"{name}_dim_{i}" if dim is None else str(dim) for i, dim in enumerate(axes))
        for name, axes in source.named_vars_to_dims.items()
        if name in shown
    }
    used = {dim for axes in dims.values() for dim in axes}
    coords = {dim: np.asarray(labels) for dim, labels in source.coords.items() if dim in used and labels is not None}
    return replace(model, dims=dims, coords=coords)
