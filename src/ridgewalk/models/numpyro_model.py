"""A NumPyro model as a function of unconstrained positions and batches of rows, run by NumPyro's handlers.

Plates of the rows take the size of the batch, and no plate is subsampled. Sites with rows give the likelihood of each
row, all others the prior.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Number
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk._validation import requires_extra
from ridgewalk.data import Batches
from ridgewalk.target import Target, finite_start, on_host

with requires_extra("numpyro"):
    from numpyro import handlers
    from numpyro.distributions import biject_to
    from numpyro.infer import Predictive, init_to_uniform
    from numpyro.infer.util import _unconstrain_reparam
    from numpyro.primitives import Messenger


class Rows(Messenger):  # type: ignore[misc]  # NumPyro has no types
    """Plates of the rows have as many as the batch; no plate is subsampled, and `numpyro.subsample` does nothing."""

    def __init__(self, fn: Callable[..., Any], plates: Iterable[str] = (), rows: jax.Array | None = None) -> None:
        self.plates, self.rows = frozenset(plates), rows
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Set the indices of a plate."""
        if msg["type"] == "plate":
            declared = msg["args"][0]
            msg["value"] = self.rows if msg["name"] in self.plates else jnp.arange(declared)
            msg["args"] = (declared, len(msg["value"]))
        elif msg["type"] == "subsample":
            msg["type"] = "already batched"


class Arguments(NamedTuple):
    """The arguments of a model: leaves with their names, and how they are put together."""

    signature: inspect.Signature
    structure: Any
    leaves: dict[str, Any]

    def call(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, with new values of some leaves."""
        bound = self.signature.bind_partial()
        bound.arguments.update(self.structure.unflatten([values.get(name, leaf) for name, leaf in self.leaves.items()]))
        return bound.args, bound.kwargs

    def arrays(self) -> dict[str, Any]:
        """The leaves that are arrays with at least one axis."""
        return {name: leaf for name, leaf in self.leaves.items() if len(getattr(leaf, "shape", ())) > 0}

    def described(self) -> str:
        """Names and shapes of the arrays."""
        return ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in self.arrays().items()) or "no arrays"


def bind_arguments(model: Callable[..., Any], args: Any, kwargs: Any) -> Arguments:
    """The arguments of a call of the model."""
    try:
        signature = inspect.signature(model)
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"model: it cannot be called with these arguments ({error}); pass them as you would to the model"
        ) from error
    paths, structure = jax.tree_util.tree_flatten_with_path(dict(bound.arguments))
    leaves = {f"{path[0].key}{jax.tree_util.keystr(path[1:])}": _on_device(leaf) for path, leaf in paths}
    for name, leaf in leaves.items():
        if hasattr(leaf, "iloc"):
            raise ValueError(f"{name}: a pandas {type(leaf).__name__} cannot be batched; pass .to_numpy()")
    found = Arguments(signature, structure, leaves)
    _refuse_lists(bound.arguments, {leaf.shape[0] for leaf in found.arrays().values()})
    return found


def _refuse_lists(arguments: Mapping[str, Any], sizes: set[int]) -> None:
    """Raise for a list of numbers that would be data: as long as an array, or there is none."""
    for name, value in arguments.items():
        numbers = isinstance(value, list) and len(value) > 1 and all(isinstance(x, Number) for x in value)
        if numbers and (len(value) in sizes or not sizes):
            raise ValueError(f"{name}: a list of {len(value)} numbers cannot be batched; pass np.array({name})")


def _on_device(leaf: Any) -> Any:
    """NumPy arrays in memory as JAX arrays, which can be indexed by batches; anything else as it is."""
    numeric = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"
    return jnp.asarray(leaf) if numeric and not on_host(leaf) else leaf


@dataclass(frozen=True, eq=False)
class NumPyroModel:
    """A NumPyro model with its arguments, as a function of unconstrained positions and batches of rows."""

    function: Callable[..., Any]
    arguments: Arguments
    """Those of the rows hold a few rows, as an example."""
    row_names: tuple[str, ...] = ()
    """The arguments that have rows."""
    plates: tuple[str, ...] = ()
    """The plates of the rows."""
    row_indices: Any = None
    """Indices that the plates of the rows have where no argument is batched; all if None."""
    row_dims: Mapping[str, int] = field(default_factory=dict)
    """The axis of the rows, from the right, of the sites that have them."""
    enumerated: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Discrete sites of the rows, with their values, which are summed over."""
    latents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Continuous latent sites, with their unconstrained shapes."""
    deterministic: tuple[str, ...] = ()
    """Deterministic sites that do not depend on the rows."""
    of_all_rows: tuple[str, ...] = ()
    """Deterministic sites that depend on the rows but do not have them as an axis, such as means over the data."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values of `param` and `mutable` sites."""
    init_strategy: Callable[..., Any] = init_to_uniform
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)

    def example(self) -> dict[str, Any]:
        """The rows that stand in where none are needed."""
        return {name: self.arguments.leaves[name] for name in self.row_names}

    def trace(self, position: PyTree, batch: Mapping[str, Any], discrete: Mapping[str, Any] | None = None) -> Any:
        """The trace of the model at an unconstrained position, on a batch."""
        return self.run(batch, partial(_unconstrain_reparam, position), discrete)

    def run(
        self,
        batch: Mapping[str, Any],
        substitute_fn: Callable[..., Any],
        discrete: Mapping[str, Any] | None = None,
        key: Key | int = 0,
    ) -> Any:
        """The trace of the model on a batch, with values of latent sites by `substitute_fn`."""
        args, kwargs = self.arguments.call(batch)
        rows = jnp.arange(next(iter(batch.values())).shape[0]) if batch else self.row_indices
        model = handlers.seed(Rows(self.function, () if rows is None else self.plates, rows), key)
        model = handlers.substitute(model, data={**self.fixed, **(discrete or {})})
        return handlers.trace(handlers.substitute(model, substitute_fn=substitute_fn)).get_trace(*args, **kwargs)

    def terms(
        self, position: PyTree, batch: Mapping[str, Any], discrete: Mapping[str, Any] | None = None
    ) -> dict[str, jax.Array]:
        """The log density of each site: one value per row where it has rows, else one value."""
        trace = self.trace(position, batch, discrete)
        return {name: self._term(site, trace) for name, site in trace.items() if site["type"] == "sample"}

    def _term(self, site: Any, trace: Any) -> jax.Array:
        extra = (site["intermediates"],) if site["intermediates"] else ()
        value = site["fn"].log_prob(site["value"], *extra)
        if site["scale"] is not None:
            rows = [frame for frame in site["cond_indep_stack"] if frame.name in self.plates]
            declared = [trace[frame.name]["args"][0] / frame.size for frame in rows if frame.name in trace]
            value = value * (site["scale"] / float(np.prod(declared)))
        if site["name"] not in self.row_dims:
            return jnp.sum(value)
        rows_first = jnp.moveaxis(value, self.row_dims[site["name"]], 0)
        return jnp.sum(rows_first.reshape(rows_first.shape[0], -1), axis=1)

    def log_prior(self, position: PyTree) -> Scalar:
        """The sites without rows, and the log determinants of the transforms."""
        terms = self.terms(position, self.example(), self.first_values())
        return sum((term for name, term in terms.items() if name not in self.row_dims), start=jnp.zeros(()))

    def log_likelihood(self, position: PyTree, batch: Mapping[str, Any]) -> jax.Array:
        """The sites with rows, one value per row; discrete ones are summed out."""
        each = [self._rows(position, batch, values) for values in self._combinations()]
        return each[0] if len(each) == 1 else jax.nn.logsumexp(jnp.stack(each), axis=0)

    def _rows(self, position: PyTree, batch: Mapping[str, Any], values: tuple[Any, ...]) -> jax.Array:
        count = next(iter(batch.values())).shape[0]
        discrete = {name: self._filled(name, value, count) for name, value in zip(self.enumerated, values, strict=True)}
        terms = self.terms(position, batch, discrete)
        return sum((terms[name] for name in self.row_dims), start=jnp.zeros(()))

    def _combinations(self) -> Iterable[tuple[Any, ...]]:
        return itertools.product(*self.enumerated.values())

    def first_values(self) -> dict[str, Any]:
        """The first value of each discrete site, for every row of the example."""
        count = next((leaf.shape[0] for leaf in self.example().values()), 0)
        return {name: self._filled(name, values[0], count) for name, values in self.enumerated.items()}

    def _filled(self, name: str, value: Any, count: int) -> jax.Array:
        """A discrete value for every row."""
        return jnp.full((count,) + (1,) * (-self.row_dims[name] - 1), value)

    def log_density(self, position: PyTree) -> Scalar:
        """All sites."""
        return sum((jnp.sum(term) for term in self.terms(position, {}).values()), start=jnp.zeros(()))

    def constrain(self, position: PyTree, data: PyTree) -> dict[str, Any]:
        """Latent and deterministic sites; those that need all rows are left out where the data are not in memory."""
        whole = bool(self.of_all_rows) and data is not None and not isinstance(data, Batches)
        trace = self.trace(position, data if whole else self.example(), self.first_values())
        names = (*self.latents, *self.deterministic, *(self.of_all_rows if whole else ()))
        return {name: jnp.asarray(trace[name]["value"]) for name in names}

    def start(self, key: Key, target: Target) -> PyTree:
        """A position of finite density by the init strategy."""
        return finite_start(key, target, self._draw_start)

    def _draw_start(self, key: Key) -> PyTree:
        strategy = self.init_strategy if isinstance(self.init_strategy, partial) else self.init_strategy()
        trace = self.run(self.example(), strategy, self.first_values(), key)
        return {name: unconstrained(trace[name]) for name in self.latents}

    def predictive(self, result: Any, key: Key | None, args: Any, kwargs: Any) -> dict[str, np.ndarray]:
        """Draws of the observed and deterministic sites."""
        data = getattr(result.estimator.target, "data", None) or {}
        if not (args or kwargs):
            args, kwargs = self.arguments.call({name: np.asarray(leaf[:]) for name, leaf in data.items()})
        drawn = {name: result.posterior[name] for name in self.latents}
        model = handlers.uncondition(Rows(handlers.substitute(self.function, data=dict(self.fixed))))
        predict = Predictive(model, posterior_samples=drawn, batch_ndims=2)
        try:
            found = predict(jax.random.key(0) if key is None else key, *args, **kwargs)
        except (TypeError, ValueError, IndexError, AssertionError) as error:
            described = bind_arguments(self.function, args, kwargs).described()
            raise ValueError(
                f"predictive: the model fails with these arguments ({described}): {error}; pass new values of what was "
                "passed to from_numpyro, observed values left out"
            ) from error
        return {name: np.asarray(value) for name, value in found.items()}


def unconstrained(site: Any) -> jax.Array:
    """The value of a latent site, unconstrained."""
    return biject_to(site["fn"].support).inv(site["value"])
