"""NUTS references of tests: `python benchmarks/zoo_reference.py [zoo | models] [NAME ...]`.

zoo: the densities of tests/zoo.py, into tests/zoo_reference.npz. models: those of tests/models/numpyro_models.py as
NumPyro runs them, constrained, into tests/models/reference.npz.

Four chains of NumPyro in float64, from U(−2, 2), until every parameter has an ESS of 2,000 or `MAX_DRAWS` are made.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import zoo
from tests.models import numpyro_models

CHAINS, WARMUP, DRAWS, MAX_DRAWS, MIN_ESS = 4, 2_000, 4_000, 32_000, 2_000

Arrays = dict[str, np.ndarray]
Run = Callable[..., Any]


def nuts(**what: Any) -> MCMC:
    return MCMC(
        NUTS(**what, target_accept_prob=0.9),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )


def reference(name: str, mcmc: MCMC, run: Run, quantities: Callable[[Arrays], Arrays]) -> Arrays:
    """Means, standard deviations, Monte Carlo errors, ESS and R-hat of `quantities` of the draws, and the potential."""
    fields = ("potential_energy", "diverging")
    parts: list[tuple[Arrays, Arrays]] = []
    while True:
        run(jax.random.key(2) if not parts else mcmc.post_warmup_state.rng_key, extra_fields=fields)
        made = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
        extra = jax.tree.map(np.asarray, mcmc.get_extra_fields(group_by_chain=True))
        parts.append((quantities(made), extra))
        draws = {leaf: np.concatenate([part[0][leaf] for part in parts], 1) for leaf in parts[0][0]}
        ess = {leaf: np.asarray(effective_sample_size(x)) for leaf, x in draws.items()}
        r_hat = {leaf: np.asarray(split_gelman_rubin(x)) for leaf, x in draws.items()}
        count, least = len(parts) * DRAWS, min(x.min() for x in ess.values())
        worst = max(x.max() for x in r_hat.values())
        print(f"{name}: {count} draws, ESS {least:.0f}, R-hat {worst:.4f}", flush=True)
        if least >= MIN_ESS or count >= MAX_DRAWS or worst > 1.5:
            break
        mcmc.post_warmup_state = mcmc.last_state
    energy = np.concatenate([part[1]["potential_energy"] for part in parts], 1)
    diverging = sum(int(np.sum(part[1]["diverging"])) for part in parts)
    print(f"{name}: potential {energy.mean(1)} ± {energy.std(1)}, {diverging} divergent transitions", flush=True)
    found = {f"{name}/potential": np.array([energy.mean(), energy.std()])}
    for leaf, values in draws.items():
        sd = values.std(axis=(0, 1))
        numbers = {"mean": values.mean(axis=(0, 1)), "sd": sd, "mcse": sd / np.sqrt(ess[leaf])}
        numbers |= {"ess": ess[leaf], "r_hat": r_hat[leaf]}
        found |= {f"{name}/{leaf}/{field}": np.asarray(number) for field, number in numbers.items()}
    return found


def zoo_references(wanted: Callable[[str], bool]) -> Iterator[tuple[str, Arrays]]:
    """Of every density, unconstrained."""
    for case in zoo.CASES:
        if wanted(case.name):
            mcmc, starts = nuts(potential_fn=case.target.potential), case.starts(jax.random.key(1), CHAINS)

            def run(key: Any, mcmc: MCMC = mcmc, starts: Any = starts, **options: Any) -> None:
                mcmc.run(key, init_params=starts if mcmc.post_warmup_state is None else None, **options)

            yield case.name, reference(case.name, mcmc, run, lambda draws: draws)


def model_references(wanted: Callable[[str], bool]) -> Iterator[tuple[str, Arrays]]:
    """Of every model, what `numpyro_models.quantities` makes of its constrained sites."""
    for name, case in numpyro_models.cases().items():
        if wanted(name):
            mcmc = nuts(model=case.model)

            def run(key: Any, mcmc: MCMC = mcmc, case: Any = case, **options: Any) -> None:
                mcmc.run(key, *case.args, **case.kwargs, **options)

            def shown(draws: Arrays, name: str = name) -> Arrays:
                return numpyro_models.quantities(name, draws)

            yield name, reference(name, mcmc, run, shown)


def write(path: Path, references: Iterable[tuple[str, Arrays]]) -> None:
    """Write each as it is made; others keep what is stored."""
    stored = dict(np.load(path)) if path.exists() else {}
    for name, found in references:
        stored = {field: value for field, value in stored.items() if field.split("/")[0] != name} | found
        np.savez_compressed(path, **stored)


def main() -> None:
    """Measure the cases named, or all."""
    numpyro.enable_x64()
    kind, *names = sys.argv[1:] or ["zoo"]

    def wanted(name: str) -> bool:
        return not names or name in names

    if kind == "zoo":
        write(zoo.REFERENCE, zoo_references(wanted))
    elif kind == "models":
        write(numpyro_models.REFERENCE, model_references(wanted))
    else:
        raise SystemExit(f"{kind!r}: use zoo or models")


if __name__ == "__main__":
    main()
