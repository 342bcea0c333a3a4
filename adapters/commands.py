"""`light-router adapter`: arguments and messages around an adapter's life."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from adapters.datasets import file_sha256
from serving.assembly import build_router
from serving.cli import DEFAULT_PROFILE, console, fail, load_config
from serving.config import Config, ModelConfig
from serving.manifest import FILE, Manifest
from serving.types import LightRouterError

if TYPE_CHECKING:
    from adapters.calibrate import Fitted
    from serving.posterior import Calibration

ConfigOption = Annotated[Path, typer.Option("--config", help="Deployment profile (YAML) of the base model.")]

app = typer.Typer(no_args_is_help=True, help="Make an adapter, and see whether it works.")


@app.callback()
def _adapter() -> None:
    """Make an adapter, and see whether it works."""


@app.command()
def cases(
    data: Annotated[Path, typer.Option(help="What the recipe's paths are relative to.", exists=True)],
    recipe: Annotated[Path, typer.Option(help="YAML: the mix.", exists=True)] = Path("adapters/recipes/cases.yaml"),
    out: Annotated[Path, typer.Option(help="Folder for the cases, and for the vectors they were found with.")] = Path(
        ".work/cases"
    ),
    config: ConfigOption = DEFAULT_PROFILE,
) -> None:
    """Make training, development and calibration cases from data sets and trajectories."""
    from adapters.cases import build_cases  # noqa: PLC0415
    from adapters.mining import CachedEmbedder  # noqa: PLC0415
    from adapters.mixture import CasesRecipe  # noqa: PLC0415

    try:
        embed = CachedEmbedder(load_config(config).prefilter.embedder, out / "vectors.npz")
        manifest = build_cases(CasesRecipe.load(recipe), data, out, embed)
    except (OSError, ValueError) as error:
        fail(error, 2)
    table = Table("source", "licence", "train", "dev", "calibration")
    for name, source in manifest["sources"].items():
        table.add_row(name, source["licence"], *(str(source[side]) for side in ("train", "dev", "calibration")))
    console.print(table)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="YAML, such as adapters/recipes/smollm2-135m.yaml.", exists=True)],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    out: Annotated[Path | None, typer.Option(help="The adapter's folder; by default .work/adapters/RECIPE.")] = None,
) -> None:
    """Train an adapter. Several processes: `accelerate launch [...] -m adapters.commands train RECIPE`."""
    from adapters.recipe import Recipe  # noqa: PLC0415
    from adapters.train import train as run  # noqa: PLC0415  (torch, transformers: seconds)

    try:
        run(Recipe.load(recipe), out or Path(".work/adapters") / recipe.stem, resume=resume)
    except ValueError as error:
        fail(error, 2)


def _profile(config: Path, adapter: Path) -> Config:
    profile = load_config(config)
    return profile.model_copy(update={"model": profile.model.model_copy(update={"adapter": str(adapter)})})


@app.command(name="import")
def import_(
    adapter: Annotated[Path, typer.Argument(help="Folder of a LoRA adapter made by peft.", exists=True)],
    config: ConfigOption = DEFAULT_PROFILE,
    readout: Annotated[str, typer.Option(help="pointwise, listwise or generate.")] = "generate",
    force: Annotated[bool, typer.Option("--force", help="Write over a manifest that is there.")] = False,
) -> None:
    """Make a manifest for an adapter that was trained elsewhere. The profile says how it is asked."""
    from adapters.package import make_manifest  # noqa: PLC0415

    if (adapter / FILE).exists() and not force:
        fail(f"{adapter / FILE} exists; give --force to write over it", 2)
    try:
        profile = _profile(config, adapter)
        model = ModelConfig.model_validate({**profile.model.model_dump(), "readout": readout})
        manifest = asyncio.run(make_manifest(profile.model_copy(update={"model": model})))
    except (LightRouterError, ValueError) as error:
        fail(error, 2)
    manifest.save(adapter)
    console.print(f"wrote {adapter / FILE}")


@app.command()
def package(
    adapter: Annotated[Path, typer.Argument(help="Folder that `train` wrote.", exists=True)],
    config: ConfigOption = DEFAULT_PROFILE,
) -> None:
    """Make the manifest of an adapter that `train` wrote here: data, hyperparameters, command, canary."""
    from adapters.package import make_manifest, trained  # noqa: PLC0415

    try:
        profile, facts = trained(_profile(config, adapter), adapter)
        manifest = asyncio.run(make_manifest(profile, **facts))
    except (LightRouterError, ValueError) as error:
        fail(error, 2)
    manifest.save(adapter)
    console.print(f"wrote {adapter / FILE}")


@app.command()
def calibrate(
    adapter: Annotated[Path, typer.Argument(help="Folder of an adapter with a manifest.", exists=True)],
    cases: Annotated[
        Path, typer.Option(help="Folder of cases: dev.jsonl.gz and calibration.jsonl.gz.", exists=True)
    ] = Path(".work/cases"),
    config: ConfigOption = DEFAULT_PROFILE,
    limit: Annotated[int | None, typer.Option(help="At most so many cases of each file.", min=200)] = None,
) -> None:
    """Fit temperature, none bias, blend and prediction sets, and write them into the manifest."""
    from adapters.calibrate import calibrate as fit  # noqa: PLC0415
    from adapters.cases import read_cases  # noqa: PLC0415

    files = [cases / "dev.jsonl.gz", cases / "calibration.jsonl.gz"]

    async def run() -> tuple[Calibration, dict[str, Fitted]]:
        router = build_router(_profile(config, adapter))
        listed, kept = ([case for case in islice(read_cases(file), limit) if case.candidates] for file in files)
        await router.start()
        try:
            with Progress(console=console) as bar:
                task = bar.add_task(adapter.name, total=len(listed) + len(kept))
                return await fit(router, listed, kept, lambda: bar.advance(task))
        finally:
            await router.close()

    try:
        calibration, fitted = asyncio.run(run())
    except (LightRouterError, ValueError) as error:
        fail(error, 2)
    parts = zip(files, fitted.values(), strict=True)
    note = "; ".join(f"{file.name} (sha256 {file_sha256(file)}): {part}" for file, part in parts)
    Manifest.load(adapter).model_copy(update={"calibration": calibration, "calibrated_on": note}).save(adapter)
    console.print(note)


@app.command()
def card(
    adapter: Annotated[Path, typer.Argument(help="Folder of an adapter with a manifest.", exists=True)],
    report: Annotated[Path, typer.Option(help="JSON that `light-router eval` wrote.", exists=True)],
    notes: Annotated[Path, typer.Option(help="Markdown: what the numbers mean, and what it cannot do.", exists=True)],
) -> None:
    """Write the model card, and the report's results into the manifest."""
    from adapters.card import card as write  # noqa: PLC0415
    from adapters.card import results  # noqa: PLC0415

    try:
        measured = json.loads(report.read_text(encoding="utf-8"))
        manifest = Manifest.load(adapter).model_copy(update={"evaluation": results(measured)})
        text = write(manifest, measured, notes.read_text(encoding="utf-8"))
    except (KeyError, ValueError) as error:
        fail(f"{report} is no report of an evaluation: {error!r}", 2)
    manifest.save(adapter)
    (adapter / "README.md").write_text(text, encoding="utf-8")
    console.print(f"wrote {adapter / 'README.md'}")


@app.command()
def verify(
    adapter: Annotated[Path, typer.Argument(help="Folder of an adapter.", exists=True)],
    config: ConfigOption = DEFAULT_PROFILE,
) -> None:
    """Say whether the server would take this adapter, and if not, why."""
    from adapters.package import verify as run  # noqa: PLC0415

    try:
        manifest = asyncio.run(run(_profile(config, adapter)))
    except (LightRouterError, ValueError) as error:
        fail(error)
    console.print(f"{manifest.name}: fits its base model and template, and its canary answers as recorded")


if __name__ == "__main__":
    app()
