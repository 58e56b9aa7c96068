"""A study without sampling, to test what surrounds one."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from ridgewalk.studies.record import save_figure
from ridgewalk.studies.schema import Number, Picture, Report, Section, Table, beside_paper
from ridgewalk.studies.study import Outcome, Piece, Preset, Study


@dataclass(frozen=True)
class Settings:
    factor: float = 2.0
    sizes: tuple[int, ...] = (1, 2, 3)


def toy_study(made, fail_at=None, name="toy"):
    """Pieces multiply; `made` collects the names of those really made; one of them may be interrupted."""

    def plan(settings):
        def piece(size):
            def make(_):
                if size == fail_at:
                    raise KeyboardInterrupt
                made.append(size)
                return {"size": size, "value": size * settings.factor}

            return Piece(f"size{size}", {"size": size, "factor": settings.factor}, make)

        return [piece(size) for size in settings.sizes]

    def assemble(settings, results, folder):
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot([row["value"] for row in results.values()])
        save_figure(folder, "line.png", figure)
        rows = tuple((f"size <{row['size']}>", beside_paper(row["value"], 4.0), "text") for row in results.values())
        rows += (("lost", Number(None, note="all diverged"), "–"),)
        cost = Section("Cost", ("A second.",), (Table("Costs", ("what", "s"), (("all", Number(1.25, 0.5)),)),))
        results_section = Section(
            "Results",
            (),
            (Table("Products", ("row", "value", "note"), rows, "A note."),),
            (Picture("line.png", "A line.", "It rises."),),
        )
        report = Report("A toy & its numbers", ("Made of <pieces>.",), (results_section, cost))
        return Outcome(report, {"values": [row["value"] for row in results.values()]})

    presets = {Preset.quick: Settings(), Preset.paper: Settings(factor=3.0, sizes=(1, 2, 3, 4))}
    return Study(name, presets, "fewer sizes.", plan, assemble)
