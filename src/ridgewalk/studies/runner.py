"""Runs a study: makes the pieces that are missing, then writes metrics, figures and tables."""

import dataclasses
from pathlib import Path

from ridgewalk._io import sole_writer
from ridgewalk.studies.pieces import Pieces, Recorded
from ridgewalk.studies.progress import Estimate, study_bar
from ridgewalk.studies.record import print_tables, write_metrics
from ridgewalk.studies.schema import as_json
from ridgewalk.studies.study import Preset, Study


def run_study(study: Study, preset: Preset, out: Path) -> Path:
    """Run, or finish, a study in `out/<name>` and return its `metrics.json`.

    Interrupted at any moment, the same call goes on with the piece it was at.
    """
    folder = out / study.name
    folder.mkdir(parents=True, exist_ok=True)
    settings = study.presets[preset]
    plan = study.plan(settings)
    if len({piece.name for piece in plan}) < len(plan):
        raise ValueError(f"plan: two pieces of {study.name} share a name; results are kept by name")

    with sole_writer(folder):
        store = Pieces(folder / "pieces")
        known = {piece.name: store.read(piece) for piece in plan}
        results: dict[str, Recorded] = {name: piece for name, piece in known.items() if piece is not None}
        missing = [piece for piece in plan if piece.name not in results]
        estimate = Estimate()
        for piece in plan:
            if piece.name in results:
                estimate.add(results[piece.name].seconds, piece.cost)
        cost = sum(piece.cost for piece in missing)
        with study_bar(study.name, len(plan), len(results), cost, estimate) as tell:
            for piece in missing:
                tell(piece.name)
                made = store.make(piece)
                estimate.add(made.seconds, piece.cost)
                results[piece.name] = made

        in_order = {piece.name: results[piece.name].values for piece in plan}  # whichever were made first
        outcome = study.assemble(settings, in_order, folder)
        path = write_metrics(
            folder,
            {
                "study": study.name,
                "preset": preset.value,
                "command": f"ridgewalk reproduce {study.name} --preset {preset.value}",
                "reduced": study.reduced if preset is Preset.quick else "",
                "settings": dataclasses.asdict(settings),
                "seconds": sum(piece.seconds for piece in results.values()),
                "pieces": {
                    piece.name: {"settings": dict(piece.settings), "seconds": results[piece.name].seconds}
                    for piece in plan
                },
                "numbers": outcome.numbers,
                "report": as_json(outcome.report),
            },
        )
    print_tables(outcome.report)
    return path
