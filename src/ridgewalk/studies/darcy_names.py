"""What the methods of the Darcy studies are called, in the order of their tables."""

ADAM = "Adam"
SGLD = "SGLD"
PSGLD = "pSGLD"
DIAGONAL = "SGHMC, fixed diagonal"
"""HASGLD-SA's base and momentum without what it learns: what is left is the gain of the pairs."""
OURS = "HASGLD-SA, M={}"
PRINTED = "HASGLD-SA, M={}, as printed"
MEMORIES = (1, 2)
BEST = OURS.format(2)
"""The form that is held against the paper's best number, chosen beforehand."""

NAMES = (SGLD, PSGLD, *map(PRINTED.format, MEMORIES), DIAGONAL, *map(OURS.format, MEMORIES), ADAM)
