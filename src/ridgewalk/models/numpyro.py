"""`from_numpyro`: a NumPyro model as a target.

The model is run once with the arguments as given, to find its sites and its rows, and then on a few rows: to tell data
from constants, and to check with numbers that rows do not depend on each other, nor the prior on the rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key
from ridgewalk._validation import requires_extra
from ridgewalk.data import read_rows
from ridgewalk.models import FULL_DATA, all_close, check_independent, close, refuse_ambiguous, trial_rows
from ridgewalk.models.numpyro_model import Arguments, NumPyroModel, bind_arguments, unconstrained
from ridgewalk.target import Density, Posterior, on_host

with requires_extra("numpyro"):
    from numpyro.distributions.distribution import Unit
    from numpyro.infer import init_to_uniform

MOST_COMBINATIONS = 256
"""Combinations of discrete values that are summed over."""

IN_PYTHON = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""Errors of a model that needs values of a batch while it is traced."""


class Axis(NamedTuple):
    """One batch axis of a site: its plate (None for an axis without), its place from the right, and its size."""

    plate: str | None
    dim: int
    size: int


class Site(NamedTuple):
    """What is known of one site of the model."""

    name: str
    kind: str
    """"latent", "observed", "factor" or "deterministic"."""
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    """Batch axes, leftmost first."""
    discrete: bool = False
    enumerable: bool = False

    def row_axis(self, size: int) -> Axis | None:
        """The leftmost axis of this size."""
        return next((axis for axis in self.axes if axis.size == size), None)


def from_numpyro(
    model: Callable[..., Any],
    *args: Any,
    data: Sequence[str] | str | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
    **kwargs: Any,
) -> Any:
    """A NumPyro model with its arguments as a target, for `sample`, `find_mode`, `control_variates` and all others.

    The rows are the plate in which the observed sites live (or the first axis of an observed site outside of plates).
    Array arguments whose first axis has its size are the data, of which minibatches are drawn; all others are
    constants. Positions are dictionaries by site, unconstrained by NumPyro's transforms; `result.posterior`, summaries
    and `to_arviz()` are constrained and include deterministic sites that do not have the rows as an axis.

        posterior = rw.from_numpyro(model, x, y=y)
        result = rw.sample(key, rw.auto(), posterior, steps=10_000, batch_size=500)
        predictions = posterior.predictive(result, new_x)

    Observed sites outside of the rows, and `numpyro.factor` without rows, are evaluated in every step. Discrete latent
    sites of the rows are summed out. `subsample_size` in plates is not used: `batch_size` of `sample` is. Latent sites
    of the rows, one value per row, cannot be sampled from minibatches.

    Args:
        model: a function with NumPyro primitives.
        args: its arguments, observed values included.
        data: names of the arguments that are data, where the rule above is ambiguous; `()` for none, which gives a
            `Density`: all data in every step.
        init_strategy: where chains start, such as `numpyro.infer.init_to_median`; by default uniform in ±2,
            unconstrained. `position=` of `sample` overrides it.
        kwargs: keyword arguments of the model.
    """
    if not callable(model):
        raise ValueError(f"model: {model!r} is not a function; pass a NumPyro model and then its arguments")
    arguments = bind_arguments(model, args, kwargs)
    base = NumPyroModel(model, arguments, init_strategy=init_strategy)
    names = None if data is None else _named(arguments, (data,) if isinstance(data, str) else tuple(data))
    sites = _sites(base, names == ())
    _check_sites(sites)
    if names == ():
        whole = _with_latents(base, sites)
        return Density(whole.log_density, model=_with_dims(whole, sites))
    found = _find_rows(base, sites, names)
    rows = {name: arguments.leaves[name] for name in found.row_names}
    return Posterior(found.log_prior, found.log_likelihood, rows, model=found)


def _named(arguments: Arguments, names: tuple[str, ...]) -> tuple[str, ...]:
    """The leaves of the arguments that `data` names."""
    found: list[str] = []
    for name in names:
        leaves = [leaf for leaf in arguments.arrays() if leaf == name or leaf.startswith(f"{name}[")]
        if not leaves:
            raise ValueError(f"data: {name!r} is no array among the arguments; they are {arguments.described()}")
        found += leaves
    return tuple(found)


def _sites(base: NumPyroModel, whole: bool) -> dict[str, Site]:
    """The sites of the model with its arguments as given; what depends on latent sites is not computed."""
    leaves = base.arguments.arrays()
    on_disk = {} if whole else {name: leaf for name, leaf in leaves.items() if on_host(leaf)}
    shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in on_disk.items()}
    found: dict[str, Site] = {}

    def run(key: Key, values: dict[str, Any]) -> None:
        for name, site in base.run(values, init_to_uniform(), key=key).items():
            if site["type"] in {"sample", "deterministic"}:
                found[name] = _site(name, site)
                _check_observed(found[name], site)

    with _ModelErrors(base.arguments):
        jax.eval_shape(run, jax.random.key(0), shapes)
    return found


def _site(name: str, site: Any) -> Site:
    shape = tuple(jnp.shape(site["value"]))
    if site["type"] == "deterministic":
        frames = site.get("cond_indep_stack") or ()
        axes = tuple(Axis(frame.name, frame.dim, frame.size) for frame in frames)
        return Site(name, "deterministic", shape, axes)
    fn, plates = site["fn"], {frame.dim: frame.name for frame in site["cond_indep_stack"]}
    batch = tuple(fn.batch_shape)
    axes = tuple(Axis(plates.get(i - len(batch)), i - len(batch), size) for i, size in enumerate(batch) if size > 1)
    if isinstance(fn, Unit):
        return Site(name, "factor", batch, axes)
    if site["is_observed"]:
        return Site(name, "observed", shape, axes)
    return Site(name, "latent", shape, axes, bool(fn.support.is_discrete), bool(fn.has_enumerate_support))


def _check_observed(known: Site, site: Any) -> None:
    """Observed values of another shape than their distribution would be broadcast."""
    if known.kind != "observed":
        return
    batch, found = tuple(site["fn"].batch_shape), jnp.shape(site["fn"].log_prob(site["value"]))
    if found != batch:
        raise ValueError(
            f"the observed values of site {known.name!r} have the shape {known.shape}, their distribution has "
            f"{tuple(site['fn'].shape())}"
        )


class _ModelErrors:
    """Errors of the user's model, with the shapes of its arguments."""

    def __init__(self, arguments: Arguments, doing: str = "with these arguments") -> None:
        self.arguments, self.doing = arguments, doing

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, IN_PYTHON):
            raise ValueError(
                "model: it uses values of its data outside of JAX, such as int(x.max()) or len(np.unique(g)), which a "
                "batch does not have; compute them before and pass them as arguments"
            ) from error
        if isinstance(error, NotImplementedError):
            raise ValueError(f"model: NumPyro cannot run it ({error}); see numpyro.handlers.reparam") from error
        if isinstance(error, TypeError | ValueError | AssertionError | IndexError):
            raise ValueError(
                f"model: it fails {self.doing} ({self.arguments.described()}): {error}; check that shapes agree with "
                "each other and with the plates"
            ) from error


def _check_sites(sites: Mapping[str, Site]) -> None:
    if not any(site.kind in {"observed", "factor"} for site in sites.values()):
        listed = ", ".join(sites) or "none"
        raise ValueError(
            f"model: no site is observed (its sites are {listed}); pass the observed values, which the model gives to "
            "numpyro.sample(…, obs=…)"
        )
    if not any(site.kind == "latent" for site in sites.values()):
        raise ValueError("model: it has no latent sites, so there is nothing to sample; add priors by numpyro.sample")


# Rows


def _find_rows(base: NumPyroModel, sites: dict[str, Site], names: tuple[str, ...] | None) -> NumPyroModel:
    """The model with its rows: arguments, plates and sites."""
    size = _row_count(base.arguments, sites, names)
    arrays = base.arguments.arrays()
    chosen = names or tuple(name for name, leaf in arrays.items() if leaf.shape[0] == size)
    observed = [site for site in sites.values() if site.kind in {"observed", "factor"}]
    axes = {site.name: axis for site in observed if (axis := site.row_axis(size))}
    plates = tuple({axis.plate: None for axis in axes.values() if axis.plate is not None})
    local = [site for site in sites.values() if site.kind == "latent" and _in_plates(site, plates)]
    _refuse_local(local, size)
    model = replace(
        base,
        plates=plates,
        row_dims={name: axis.dim for name, axis in axes.items()}
        | {site.name: _row_dim(site, plates) for site in local},
        enumerated={site.name: _enumerate(base, site) for site in local},
    )
    combinations = int(np.prod([len(values) for values in model.enumerated.values()]))
    if combinations > MOST_COMBINATIONS:
        raise ValueError(
            f"model: its discrete sites {', '.join(model.enumerated)} have {combinations} combinations of values, more "
            f"than {MOST_COMBINATIONS}; write their sum in the model, for example by dist.MixtureSameFamily"
        )
    trial = _Trial(model, sites, size)
    if names is None:
        trial.refuse_ambiguous(chosen)
    return trial.finish(chosen)


def _in_plates(site: Site, plates: Iterable[str]) -> bool:
    return any(axis.plate in set(plates) for axis in site.axes)


def _row_dim(site: Site, plates: Iterable[str]) -> int:
    return next(axis.dim for axis in site.axes if axis.plate in set(plates))


def _row_count(arguments: Arguments, sites: Mapping[str, Site], names: tuple[str, ...] | None) -> int:
    """N: the size of an axis that all observed sites have, and that is the first of an argument."""
    observed = [site for site in sites.values() if site.kind == "observed"]
    observed = observed or [site for site in sites.values() if site.kind == "factor"]
    arrays = arguments.arrays()
    if names is not None:
        sizes = {name: arrays[name].shape[0] for name in names}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise ValueError(f"data: numbers of rows differ ({listed}); name arguments with one row per observation")
        size = next(iter(sizes.values()))
        if not any(site.row_axis(size) for site in observed):
            raise ValueError(
                f"data: {names[0]} has {size} rows, but {_axes_listed(observed)}; name those with the rows"
            )
        return size
    with_axes = [site for site in observed if site.axes]  # the others are evaluated in every step
    if not with_axes:
        raise ValueError(
            f"model: the log density of the observed site {observed[0].name!r} is a single number, without rows; leave "
            f"out to_event for independent rows, put the site into a numpyro.plate of the rows, or {FULL_DATA}"
        )
    shared = [axis.size for axis in with_axes[0].axes if all(site.row_axis(axis.size) for site in with_axes)]
    if not shared:
        raise ValueError(
            f"model: observed sites have different numbers of rows ({_axes_listed(observed)}); name the arguments of "
            f"one of them in data=…, which leaves the others to be evaluated in every step, or {FULL_DATA}"
        )
    batched = [size for size in shared if any(leaf.shape[0] == size for leaf in arrays.values())]
    if not batched:
        raise ValueError(
            f"model: no argument has the {shared[0]} rows of the observed site {with_axes[0].name!r} as its first axis "
            f"({arguments.described()}); pass the data as arguments of the model instead of as globals, or {FULL_DATA}"
        )
    return batched[0]


def _axes_listed(observed: Iterable[Site]) -> str:
    return ", ".join(
        f"{site.name!r} has " + (" × ".join(_axis_text(axis) for axis in site.axes) or "no rows") for site in observed
    )


def _axis_text(axis: Axis) -> str:
    return f"{axis.size}" + (f" in plate {axis.plate!r}" if axis.plate else "")


def _refuse_local(local: Iterable[Site], size: int) -> None:
    for site in local:
        if not site.discrete:
            raise ValueError(
                f"model: the latent site {site.name!r} is in the plate of the {size} rows, with one value per row, "
                "which minibatches cannot sample; integrate it out, put it into a plate of its own that the rows "
                f"index (theta[group]), or {FULL_DATA}"
            )


def _enumerate(base: NumPyroModel, site: Site) -> tuple[Any, ...]:
    """The values of a discrete site of the rows."""
    if not site.enumerable or len(site.shape) != len(site.axes) or len(site.axes) != 1:
        raise ValueError(_discrete_text(site.name, "it cannot be summed over row by row"))
    with _ModelErrors(base.arguments):
        values = base.run({}, init_to_uniform())[site.name]["fn"].enumerate_support(expand=False)
    return tuple(np.asarray(values).reshape(-1).tolist())


def _discrete_text(name: str, why: str) -> str:
    return (
        f"model: the latent site {name!r} is discrete, and {why}; write the sum over its values in the model, for "
        "example by dist.MixtureSameFamily, or make it continuous"
    )


def _with_latents(model: NumPyroModel, sites: Mapping[str, Site]) -> NumPyroModel:
    """The model with the shapes of its latent sites, and fixed values of `param` sites."""
    for site in sites.values():
        if site.kind == "latent" and site.discrete and site.name not in model.enumerated:
            raise ValueError(_discrete_text(site.name, "it is not a site of the rows"))
    trace = model.run(model.example(), init_to_uniform(), model.first_values())
    fixed = {name: site["value"] for name, site in trace.items() if site["type"] in {"param", "mutable"}}
    latents = {}
    for site in sites.values():
        if site.kind == "latent" and not site.discrete:
            shape = jnp.shape(trace[site.name]["value"])
            if shape != site.shape:
                raise _ShapeChanged(site.name, site.shape, shape)
            latents[site.name] = tuple(jax.eval_shape(partial(unconstrained, trace[site.name])).shape)
    deterministic = tuple(site.name for site in sites.values() if site.kind == "deterministic")
    return replace(model, fixed=fixed, latents=latents, deterministic=deterministic)


def _with_dims(model: NumPyroModel, sites: Mapping[str, Site]) -> NumPyroModel:
    """Axes by the names of their plates."""
    shown = (*model.latents, *model.deterministic, *model.of_all_rows)
    dims, coords = {}, {}
    for name in shown:
        site = sites[name]
        of_plates = {axis.dim: axis for axis in site.axes if axis.plate is not None}
        batch = max((-dim for dim in of_plates), default=0)
        if not batch:
            continue
        event = 0 if site.kind == "deterministic" else len(site.shape) - max(-axis.dim for axis in site.axes)
        names = []
        for place in range(len(site.shape)):
            axis = of_plates.get(place - len(site.shape) + event)
            if axis is None or axis.size != site.shape[place]:
                names.append(f"{name}_dim_{place}")
                continue
            names.append(f"{axis.plate}_dim" if axis.plate in shown else str(axis.plate))
            coords[names[-1]] = np.arange(axis.size)
        dims[name] = tuple(names)
    return replace(model, dims=dims, coords=coords)


class _Trial:
    """Runs of the model on a few rows: which arguments are data, and whether rows are independent."""

    def __init__(self, model: NumPyroModel, sites: dict[str, Site], size: int) -> None:
        self.model, self.sites, self.size = model, sites, size
        self.first, self.second = trial_rows(
            size, (length for leaf in model.arguments.arrays().values() for length in leaf.shape)
        )

    def _with_example(self, names: tuple[str, ...], rows: np.ndarray) -> NumPyroModel:
        """The model with these rows as its example."""
        leaves = self.model.arguments.leaves
        batch = {name: jnp.asarray(read_rows(_indexable(leaves[name]), rows)) for name in names}
        arguments = self.model.arguments._replace(leaves={**leaves, **batch})
        indices = None if names else jnp.asarray(rows)
        return replace(self.model, arguments=arguments, row_names=names, row_indices=indices)

    def with_rows(self, names: tuple[str, ...], rows: np.ndarray) -> NumPyroModel:
        """The model with these rows as its example, and with its latent sites."""
        return _with_latents(self._with_example(names, rows), self.sites)

    def _run_traced(self, names: tuple[str, ...]) -> None:
        """Run the model on a batch that JAX traces, as compiled code does."""
        model = self._with_example(names, self.first)

        def run(batch: dict[str, Any]) -> None:
            model.run(batch, init_to_uniform(), model.first_values())

        jax.eval_shape(run, model.example())

    def terms(self, model: NumPyroModel) -> dict[str, np.ndarray]:
        """Log densities of the sites on the example rows, at a fixed position; raises if shapes are wrong."""
        position = {
            name: jax.random.uniform(jax.random.key(i), shape, jnp.result_type(float), -1.0, 1.0)
            for i, (name, shape) in enumerate(model.latents.items())
        }
        found = jax.tree.map(np.asarray, model.terms(position, model.example(), model.first_values()))
        for name in model.row_dims:
            if found[name].shape != self.first.shape:
                raise ValueError(f"site {name!r} has {found[name].shape[0]} rows in a batch of {len(self.first)}")
        return found

    def try_terms(self, names: tuple[str, ...]) -> dict[str, np.ndarray] | None:
        """`terms` with these arguments as data; None if the model does not work so."""
        try:
            return self.terms(self.with_rows(names, self.first))
        except (TypeError, ValueError, AssertionError, IndexError, _ShapeChanged):
            return None

    def refuse_ambiguous(self, names: tuple[str, ...]) -> None:
        """Raise if the model works both with one of the arguments as data and with it as a constant."""
        batched, by_index = self.try_terms(names), self.try_terms(())
        if batched is not None and by_index is not None and all_close(batched, by_index):
            return  # the model indexes its arguments by the plate: with plate(…) as rows: x[rows]
        refuse_ambiguous(names, names, self.size, batched, self.try_terms)

    def finish(self, names: tuple[str, ...]) -> NumPyroModel:
        """The model with these arguments as data, once its rows were seen to be independent."""
        try:
            with _ModelErrors(self.model.arguments, f"on a batch of {len(self.first)} rows of {', '.join(names)}"):
                self._run_traced(names)
                model = self.with_rows(names, self.first)
                one, two = self.terms(model), self.terms(self.with_rows(names, self.second))
        except _ShapeChanged as error:
            raise ValueError(
                f"model: the latent site {error.name!r} has the shape {error.whole} with all rows and {error.part} "
                f"with {len(self.first)} of them; if it has one value per row, integrate it out, give it a plate that "
                f"the rows index (theta[group]), or {FULL_DATA}; if one of the arguments {', '.join(names)} is not "
                "data, name the others in data=…"
            ) from error
        check_independent(one, two, model.row_dims)
        return self._with_deterministic(model, self.with_rows(names, self.second))

    def _with_deterministic(self, model: NumPyroModel, other: NumPyroModel) -> NumPyroModel:
        """Which deterministic sites depend on the rows; those that have them as an axis are not kept."""
        zeros = {name: jnp.full(shape, 0.3) for name, shape in model.latents.items()}
        one, two = (m.trace(zeros, m.example(), m.first_values()) for m in (model, other))
        steady: list[str] = []
        of_all: list[str] = []
        for name in model.deterministic:
            a, b = (np.asarray(trace[name]["value"]) for trace in (one, two))
            if a.shape == self.sites[name].shape:
                (steady if close(a, b) else of_all).append(name)
        return _with_dims(replace(model, deterministic=tuple(steady), of_all_rows=tuple(of_all)), self.sites)


class _ShapeChanged(Exception):
    """A latent site whose shape depends on the number of rows."""

    def __init__(self, name: str, whole: tuple[int, ...], part: tuple[int, ...]) -> None:
        super().__init__(name)
        self.name, self.whole, self.part = name, whole, part


def _indexable(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
