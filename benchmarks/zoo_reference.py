"""NUTS references of tests/zoo.py: `python benchmarks/zoo_reference.py [NAME ...]` writes tests/zoo_reference.npz.

Four chains of NumPyro in float64, from U(−2, 2), until every parameter has an ESS of 2,000 or `MAX_DRAWS` are made.
"""

import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import zoo

CHAINS, WARMUP, DRAWS, MAX_DRAWS, MIN_ESS = 4, 2_000, 4_000, 32_000, 2_000


def reference(case: zoo.Case) -> dict[str, np.ndarray]:
    """Means, standard deviations, Monte Carlo errors, ESS and R-hat of every parameter, and the potential."""
    potential = case.target.potential
    mcmc = MCMC(
        NUTS(potential_fn=potential, target_accept_prob=0.9),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    starts = case.starts(jax.random.key(1), CHAINS)
    fields = ("potential_energy", "diverging")
    mcmc.run(jax.random.key(2), init_params=starts, extra_fields=fields)
    parts = [(mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True))]
    while True:
        draws = {leaf: np.concatenate([np.asarray(part[0][leaf]) for part in parts], 1) for leaf in case.shapes}
        ess = {leaf: np.asarray(effective_sample_size(x)) for leaf, x in draws.items()}
        r_hat = {leaf: np.asarray(split_gelman_rubin(x)) for leaf, x in draws.items()}
        made, least = (
            sum(part[0][next(iter(case.shapes))].shape[1] for part in parts),
            min(x.min() for x in ess.values()),
        )
        worst = max(x.max() for x in r_hat.values())
        print(f"{case.name}: {made} draws, ESS {least:.0f}, R-hat {worst:.4f}", flush=True)
        if least >= MIN_ESS or made >= MAX_DRAWS or worst > 1.5:
            break
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=fields)
        parts.append((mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)))
    energy = np.concatenate([np.asarray(part[1]["potential_energy"]) for part in parts], 1)
    diverging = sum(int(np.sum(part[1]["diverging"])) for part in parts)
    print(f"{case.name}: potential {energy.mean(1)} ± {energy.std(1)}, {diverging} divergent transitions", flush=True)
    found = {f"{case.name}/potential": np.array([energy.mean(), energy.std()])}
    for leaf, values in draws.items():
        sd = values.std(axis=(0, 1))
        numbers = {"mean": values.mean(axis=(0, 1)), "sd": sd, "mcse": sd / np.sqrt(ess[leaf])}
        numbers |= {"ess": ess[leaf], "r_hat": r_hat[leaf]}
        found |= {f"{case.name}/{leaf}/{field}": np.asarray(number) for field, number in numbers.items()}
    return found


def main() -> None:
    """Measure the cases named, or all; others keep what is stored."""
    numpyro.enable_x64()
    stored = dict(np.load(zoo.REFERENCE)) if zoo.REFERENCE.exists() else {}
    for case in zoo.CASES:
        if len(sys.argv) < 2 or case.name in sys.argv[1:]:
            stored = {name: value for name, value in stored.items() if name.split("/")[0] != case.name}
            stored |= reference(case)
            np.savez_compressed(zoo.REFERENCE, **stored)


if __name__ == "__main__":
    main()
