"""Every code block of the documentation is run, and the site is built, strictly, into pages that need no network."""

import dataclasses
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
import yaml

import ridgewalk as rw
from ridgewalk.cli import app
from ridgewalk.studies.framework import study

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "CONTRIBUTING.md"]

HEAVY = {
    "pip install -e '.[all]'": "every test runs in an environment that was made so",
    "pip install 'ridgewalk[numpyro]'": "every test runs in an environment that was made so",
    "make test": "it runs this",
    "make lint": "a part of `make test`",
    "make test-lowest": "installs other versions",
    "make test-slow": "many minutes, and this among them",
    "make reproduce": "the studies have tests of their own",
    "make benchmark": "installs PyTorch",
    "make docs": "test_site builds the site",
    "ridgewalk launch -n 2 run.py": "tests/distributed starts processes",
    'sbatch --nodes=4 --ntasks-per-node=1 --wrap "srun python run.py"': "needs Slurm",
    "mpirun -n 4 python run.py": "needs Open MPI",
    "ridgewalk reproduce all --preset quick --out results": "minutes; the studies have tests of their own",
    "ridgewalk fit --data permeability.zarr --inputs permeability --targets flux --network permeability --out model": (
        "8 million weights; tests/neural/test_darcy_surrogate.py fits a smaller one"
    ),
}
"""Commands that no test of this file runs, and why."""


class Block(NamedTuple):
    language: str
    text: str
    line: int
    """Of the page, where the text begins."""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(match[1], match[2], text[: match.start(2)].count("\n") + 1) for match in found]


BLOCKS = {page.relative_to(ROOT).as_posix(): blocks_of(page) for page in PAGES}


def commands_of(block: Block) -> list[str]:
    """One line each, without remarks."""
    lines = block.text.replace("\\\n", " ").splitlines() if block.language == "sh" else []
    return [" ".join(line.split("#")[0].split()) for line in lines]


COMMANDS = [command for blocks in BLOCKS.values() for block in blocks for command in commands_of(block)]

SLOW = {
    "docs/choosing.md",
    "docs/classification.md",
    "docs/coming_from.md",
    "docs/diagnosing.md",
    "docs/distributed.md",
    "docs/models.md",
    "docs/resuming.md",
    "docs/getting-started.md",
    "docs/after_the_run.md",
    "docs/extending.md",
    "docs/sparse.md",
    "docs/neural.md",
    "docs/warmup.md",
}
"""Pages whose blocks compile for longer than the default suite can spare; README runs the like of them."""

SESSIONS = [
    pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page
    for page, blocks in BLOCKS.items()
    if any(block.language == "python" for block in blocks)
]


@pytest.fixture
def as_a_user(tmp_path, monkeypatch):
    """JAX as it comes, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    before = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_numpy_rank_promotion")}
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def without_numbers(text: str) -> str:
    return re.sub(r"\d[\d.,]*(?:e[-+]?\d+)?", "#", text)


@pytest.mark.parametrize("page", SESSIONS)
def test_blocks_run_in_order(page, as_a_user, capsys):
    """A page is one session: later blocks use the names and files of earlier ones, and blocks of text are what was
    printed, but for the digits.
    """
    names, printed = {"__name__": "__main__"}, ""
    for block in BLOCKS[page]:
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, ROOT / page, "exec"), names)
        for command in commands_of(block):
            program, *words = shlex.split(command)
            if program == "ridgewalk" and command not in HEAVY:
                app(words, standalone_mode=False)
        printed += capsys.readouterr().out
        for line in block.text.splitlines() if block.language == "text" else ():
            assert without_numbers(line) in without_numbers(printed).splitlines()
    assert printed


def test_every_block_and_command_is_run_or_has_a_reason():
    assert {block.language for blocks in BLOCKS.values() for block in blocks} == {"python", "sh", "text"}
    left_out = {command for command in COMMANDS if not command.startswith("ridgewalk") or command in HEAVY}
    assert left_out == set(HEAVY), "HEAVY must name exactly the commands that are not run"


@pytest.fixture(scope="module", name="site")
def _site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site(site):
    """Strict: no dead link or missing page. All of it is there, all formulae are drawn, and nothing is fetched."""
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    written = [page.relative_to(DOCS) for page in PAGES if page.is_relative_to(DOCS)]
    wanted = {page.with_name("index.md") if page.name == "README.md" else page for page in written}
    assert {page.with_suffix(".html") for page in wanted} <= {path.relative_to(site) for path in pages}
    for path, text in pages.items():
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"?([^\s\">]+)", text)
        fetched += re.findall(r"<link[^>]*\brel=\"?(?:stylesheet|icon|preconnect)[^>]*", text)
        assert not [address for address in fetched if "//" in address], path
        for picture in re.findall(r"<img[^>]*\bsrc=\"?([^\s\">]+)", text):
            assert (path.parent / picture).is_file(), f"{path}: {picture}"
        assert not re.search(r"\\\(|\\\[|arithmatex|<merror|\$\$", text), path
    assert pages[site / "mathematics.html"].count("<math") > 100


def test_formulae_use_commands_that_are_known_to_be_drawn():
    """latex2mathml leaves out a command that it does not know, and says nothing; these were seen in a browser."""
    known = (
        "bar hat tilde left right text operatorname mathbb mathcal frac sqrt sum max log exp top mid cdot odot "
        "in ge ne leftarrow langle rangle nabla partial quad qquad alpha beta gamma delta varepsilon zeta eta "
        "theta vartheta kappa lambda mu nu xi rho sigma tau varphi omega Gamma Delta Lambda"
    )
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        formulae = re.findall(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", text, flags=re.DOTALL)
        used = {command for pair in formulae for part in pair for command in re.findall(r"\\([A-Za-z]+)", part)}
        assert used <= set(known.split()), page


def test_every_public_name_is_in_the_reference(site):
    text = " ".join(path.read_text() for path in (site / "api").glob("*.html"))
    anchors = {anchor.split(".")[-1] for anchor in re.findall(r'\bid="?(ridgewalk\.[\w.]+)', text)}
    assert set(rw.__all__) - anchors == set()


def test_public_dataclasses_have_their_signature_in_the_reference(site):
    text = " ".join(path.read_text() for path in (site / "api").glob("*.html"))
    public = {name: getattr(rw, name) for name in rw.__all__}
    made = [name for name, one in public.items() if isinstance(one, type) and dataclasses.is_dataclass(one)]
    lost = []
    for name in made:
        heading = re.search(rf'<h\d id="?ridgewalk\.[\w.]+\.{name}["\s].*?</h\d>', text, flags=re.DOTALL)
        if heading is None or "doc-signature" not in text[heading.end() : heading.end() + 200]:
            lost.append(name)
    assert "Dense" in made
    assert lost == []


def hook(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_lists_its_names_in_one_line_each():
    """Written by docs/hooks/api_tables.py: the pages can be read without a site."""
    tables = hook("api_tables")
    for page in sorted((DOCS / "api").glob("*.md")):
        assert tables.with_table(page.read_text()) == page.read_text(), f"run {tables.__file__}"
    assert "| `sgld` | Stochastic gradient Langevin dynamics" in (DOCS / "api" / "samplers.md").read_text()


def test_pages_open_with_what_the_reader_can_do_after_them():
    for page in (*DOCS.glob("*.md"), *DOCS.glob("api/*.md")):
        if page.name not in ("index.md", "changelog.md", "contributing.md"):
            assert re.match(r"# .+\n\nAfter this page you (can|know) ", page.read_text()), page


def test_recorded_studies_are_shown(tmp_path):
    from ridgewalk.studies.framework.runner import write_record

    studies = hook("studies")
    assert studies.recorded(tmp_path) == studies.NOTHING
    row = ("SGLD", study.versus_paper(0.5, 0.4, se=0.01))
    section = study.Section("Errors", ("Text.",), (study.Table("A table", ("", "error"), (row,)),))
    report = study.Report("A study", ("About it.",), (section,))
    known = {"study": "toy", "preset": "quick", "command": "ridgewalk reproduce toy", "reduced": "all", "seconds": 90}
    (tmp_path / "toy").mkdir()
    write_record(tmp_path / "toy", {**known, "settings": {}, "report": study.to_json(report)})
    shown = studies.recorded(tmp_path)
    assert "## A study" in shown
    assert "`ridgewalk reproduce toy`" in shown
    for part in ("0.5", "0.01", "paper", "0.4", "worse"):
        assert part in shown


def test_citation_is_of_this_version_and_names_the_paper():
    """The keys that the Citation File Format 1.2.0 requires, and no others than it knows."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == rw.__version__
    newest = re.search(r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest.groups() == (rw.__version__, str(cited["date-released"]))
    assert [author["family-names"] for author in cited["references"][0]["authors"]] == ["Wang", "Deng", "Lin"]
