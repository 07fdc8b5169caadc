"""The commands that run inside an image: measuring code, so an edit makes a new image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from artifact.errors import UserError


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


def bundle(
    model: Annotated[str, typer.Option(help="A model of study.toml.")],
    out: Annotated[Path, typer.Option(help="Folder that holds the bundles.")],
    inputs: Annotated[str, typer.Option("--input", help="Comma-separated inputs.")],
) -> None:
    """Inside the inductor image: write the reference bundle of one model."""
    from artifact import study

    try:
        from artifact.models import bundle_writer
    except ModuleNotFoundError as error:
        raise UserError(
            f"bundles are made where PyTorch is, and {error.name} is not here",
            next_step="a campaign makes the bundles it needs: run `artifact reproduce`",
        ) from error
    from artifact.models.spec import ModelSpec, bundle_key, models_hash

    loaded = study.load()
    chosen = loaded.model(model)
    spec = ModelSpec(id=model, architecture=chosen.architecture, options=dict(chosen.options))
    key = bundle_key(model, loaded.seed, models_hash())
    manifest = bundle_writer.write_bundle(
        spec, inputs.split(","), loaded.seed, out / key, chosen.weights_sha256 or None
    )
    typer.echo(f"{key}: weights {manifest.weights_sha256}")


def calibrate(
    out: Annotated[Path, typer.Option(help="Folder for calibration.json.")],
    scratch: Annotated[Path, typer.Option(help="Private folder for the fixed compile.")],
    threads: Annotated[int, typer.Option(help="Threads of the matrix product.")] = 2,
) -> None:
    """Inside the inductor image: time a fixed compile, matrix product and memory pass."""
    from artifact.strict_json import write_atomic
    from artifact.trial.calibration import calibrate as measure

    write_atomic(out / "calibration.json", measure(scratch, threads))
