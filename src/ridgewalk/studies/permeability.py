"""The paper's fourth example: the permeability varies, the source is constant."""

from ridgewalk.studies.darcy_names import ADAM, BEST, MEMORIES, PRINTED, PSGLD, SGLD
from ridgewalk.studies.darcy_settings import Settings
from ridgewalk.studies.darcy_story import assemble
from ridgewalk.studies.darcy_study import plan
from ridgewalk.studies.study import Preset, Study

PAPER_SIZE = Settings(
    "permeability",
    train=1300,
    methods=(SGLD, PSGLD, *map(PRINTED.format, MEMORIES), BEST, ADAM),
    mirrors=(True, False),
    methods_aside=(SGLD, BEST, ADAM),
    sparsities_aside=(0.0, 0.3, 0.5),
    batch_size=20,
    optimiser_steps=5_000,
    learning_rate=1e-3,
    chain_gradients=250,
    draws=10,
    relative_noise=0.01,
    prior_scale=0.03,
)

QUICK = Settings(
    "permeability",
    size=20,
    samples=300,
    train=240,
    held=40,
    seeds=1,
    sparsities=(0.0, 0.5),
    methods=(SGLD, PSGLD, BEST, ADAM),
    mirrors=(True,),
    batch_size=20,
    optimiser_steps=400,
    learning_rate=1e-3,
    chain_gradients=300,
    draws=10,
    relative_noise=0.01,
    prior_scale=0.03,
    tuned=False,
    multiscale_samples=5,
)

STUDY = Study(
    "permeability",
    {Preset.quick: QUICK, Preset.paper: PAPER_SIZE},
    "a 20×20 grid in place of 50×50, 300 samples in place of 1,500, one seed, two of four sparsities, four of six "
    "methods, with the symmetry only, about an eighth of the gradients, five samples for the multiscale solver in "
    "place of 20, and no tuning of step sizes.",
    plan,
    assemble,
)
