"""The command line: parses, calls, prints. Rooms are imported when a command needs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from artifact.errors import UserError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measures what compiling costs and earns: TorchInductor, XLA and TVM in cold containers.",
)

ProfileOption = Annotated[str, typer.Option("--profile", help="A profile of study.toml, or auto.")]
EngineOption = Annotated[str, typer.Option("--engine", help="auto, docker, process or fake.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
NameOption = Annotated[str, typer.Option("--name", help="Campaign folder below results/.")]


@app.command()
def trial(
    spec: Annotated[Path, typer.Option(help="trial.json")],
    out: Annotated[Path, typer.Option(help="Folder for record.json and the generated code.")],
    bundle: Annotated[Path, typer.Option(help="Folder that holds the reference bundles.")],
    scratch: Annotated[Path, typer.Option(help="Private, empty folder for caches and TMPDIR.")],
) -> None:
    """Inside an image: run one cold process and write one record."""
    from artifact.trial.clock import Clock

    clock = Clock()
    from artifact.trial import runner

    record = runner.run(
        runner.read_spec(spec), out=out, bundle_root=bundle, scratch=scratch, clock=clock
    )
    typer.echo(f"{record.spec.record_id}: {record.status} {record.message}".rstrip(), err=True)
    if record.log_tail:
        typer.echo(record.log_tail, err=True)


@app.command()
def bundle(
    model: Annotated[str, typer.Option(help="A model of study.toml.")],
    out: Annotated[Path, typer.Option(help="Folder that holds the bundles.")],
    inputs: Annotated[str, typer.Option("--input", help="Comma-separated inputs.")],
) -> None:
    """Inside the inductor image: write the reference bundle of one model."""
    from artifact import study
    from artifact.models import bundle_writer
    from artifact.models.spec import ModelSpec, bundle_key, models_hash

    loaded = study.load()
    chosen = loaded.model(model)
    spec = ModelSpec(id=model, architecture=chosen.architecture, options=dict(chosen.options))
    key = bundle_key(model, loaded.seed, models_hash())
    manifest = bundle_writer.write_bundle(
        spec,
        inputs.split(","),
        loaded.seed,
        out / key,
        chosen.weights_sha256 or None,
    )
    typer.echo(f"{key}: weights {manifest.weights_sha256}")


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(help="Folder for calibration.json.")],
    scratch: Annotated[Path, typer.Option(help="Private folder for the fixed compile.")],
    threads: Annotated[int, typer.Option(help="Threads of the matrix product.")] = 2,
) -> None:
    """Inside the inductor image: time a fixed compile, matrix product and memory pass."""
    from artifact.strict_json import write_atomic
    from artifact.trial.calibration import calibrate as measure

    write_atomic(out / "calibration.json", measure(scratch, threads))


@app.command()
def plan(
    profile: ProfileOption = "cpu",
    seed: Annotated[Optional[int], typer.Option(help="Seed of the shuffles.")] = None,
) -> None:
    """List the trials of a profile in the order in which they would run."""
    from artifact import study
    from artifact.plan import make_plan

    made = make_plan(study.load(), profile, seed=seed)
    for spec in made.priming:
        typer.echo(f"priming  {spec.trial_id}")
    for block in made.blocks:
        typer.echo(f"round {block.round}  {block.model} {block.input}: ", nl=False)
        typer.echo(" ".join(spec.configuration for spec in block.trials))
    typer.echo(f"{sum(1 for _ in made.trials())} measured trials in {len(made.blocks)} blocks")


def main() -> None:
    """Entry point: a `UserError` becomes one line on stderr and its exit code, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except UserError as error:
        typer.echo(f"artifact: {error}", err=True)
        sys.exit(error.exit_code)
