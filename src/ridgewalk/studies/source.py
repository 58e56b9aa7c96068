"""The paper's third example: sources vary, the permeability is SPE10's layer 53."""

from ridgewalk.studies.darcy_names import ADAM, BEST, PSGLD, SGLD
from ridgewalk.studies.darcy_settings import Settings
from ridgewalk.studies.darcy_story import assemble
from ridgewalk.studies.darcy_study import plan
from ridgewalk.studies.study import Preset, Study

QUICK = Settings(
    "source",
    size=20,
    samples=300,
    train=240,
    held=40,
    seeds=1,
    sparsities=(0.0, 0.5, 0.7),
    methods=(SGLD, PSGLD, BEST, ADAM),
    optimiser_steps=150,
    chain_gradients=300,
    draws=10,
    tuned=False,
)

STUDY = Study(
    "source",
    {Preset.quick: QUICK, Preset.paper: Settings("source", optimiser_steps=1_200, chain_gradients=500)},
    "a 20×20 grid in place of 50×50, 300 samples in place of 1,500, one seed, three of four sparsities, four of eight "
    "methods, about a quarter of the gradients, half the draws, and no tuning of step sizes.",
    plan,
    assemble,
)
