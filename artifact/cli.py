"""The command line: parses, calls, prints. Rooms are imported when a command needs them."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from artifact.errors import UserError
from artifact.strict_json import SchemaError
from artifact.trial import commands

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


for inside in (commands.trial, commands.bundle, commands.calibrate):
    app.command()(inside)


@app.command()
def plan(
    profile: ProfileOption = "cpu",
    seed: Annotated[int | None, typer.Option(help="Seed of the shuffles.")] = None,
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


@app.command()
def build(
    engine: EngineOption = "auto",
    device: DeviceOption = "auto",
    profile: ProfileOption = "auto",
) -> None:
    """Build the images that are missing (docker), or make the venvs (process)."""
    from artifact.host import reproduce as path

    wish = path.Wish(engine=engine, device=device, profile=profile)
    prepared = path.resolve(wish)
    path.prepare_engine(prepared.choice, path.ALL_STACKS, wish.results, typer.echo)


@app.command()
def reproduce(
    profile: ProfileOption = "auto",
    engine: EngineOption = "auto",
    device: DeviceOption = "auto",
    name: NameOption = "",
    resume: Annotated[bool, typer.Option("--resume", help="Run only what is missing.")] = False,
    isa: Annotated[str | None, typer.Option(help="avx2 or native.")] = None,
    precision: Annotated[str, typer.Option(help="fp32 or tf32 (CUDA only).")] = "fp32",
    seed: Annotated[int | None, typer.Option(help="Seed of the shuffles.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of all campaigns.")] = Path("results"),
    selinux: Annotated[str, typer.Option(help="z or Z: label our output folder.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="Only this block now, like resnet18:1x3x224x224.")
    ] = None,
) -> None:
    """Prepare, measure what is missing, and summarise (`make reproduce`)."""
    from artifact.host import reproduce as path

    wish = path.Wish(
        profile=profile,
        engine=engine,
        device=device,
        name=name,
        resume=resume,
        isa=isa,
        precision=precision,
        seed=seed,
        results=results,
        selinux=selinux,
        only=path.blocks_named(only) if only else None,
    )
    raise typer.Exit(path.reproduce_and_check(wish, typer.echo))


app.command("run", help="The same as reproduce.")(reproduce)


@app.command()
def summary(
    name: Annotated[str, typer.Option("--name", help="Campaign folder below results/.")],
    results: Annotated[Path, typer.Option(help="Folder of all campaigns.")] = Path("results"),
) -> None:
    """Print the summary table of a campaign again."""
    from artifact.host import reproduce as path

    typer.echo(path.summary_text(results / name), nl=False)


FromOption = Annotated[str, typer.Option("--from", help="measured, reference or published.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of all campaigns.")]


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="fig1, fig2, ...")],
    source: FromOption = "measured",
    profile: ProfileOption = "auto",
    engine: EngineOption = "auto",
    device: DeviceOption = "auto",
    campaign: NameOption = "",
    results: ResultsOption = Path("results"),
    reference: Annotated[str, typer.Option(help="Machine class, or CLASS/campaign-1.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of the files.")] = None,
) -> None:
    """Draw one figure; with --from measured, run what is missing for it first and judge it."""
    from artifact.host import reproduce as path

    wish = path.Wish(profile=profile, engine=engine, device=device, name=campaign, results=results)
    code = path.one_figure(name, source, wish, typer.echo, reference=reference, out=out)
    raise typer.Exit(code)


app.command("table", help="Write one table (tab1, ...), like `figure`.")(figure)


@app.command()
def check(
    name: NameOption = "",
    results: ResultsOption = Path("results"),
    strict: Annotated[bool, typer.Option(help="Findings outside tier `same` count too.")] = False,
    expected: Annotated[Path | None, typer.Option(help="A bare expected file.")] = None,
    measured: Annotated[Path | None, typer.Option(help="A campaign, or a bare file.")] = None,
    reference: Annotated[Path | None, typer.Option(help="A campaign or machine class.")] = None,
    propose: Annotated[bool, typer.Option(help="Write the expected file this would give.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this block, like resnet18:1x3x224x224.")
    ] = None,
) -> None:
    """Judge every claim on a campaign: verdict.md, verdict.json, exit code 0, 1 or 2."""
    from artifact.host import judge
    from artifact.host import reproduce as path

    raise typer.Exit(
        judge.check(
            name,
            results=results,
            strict=strict,
            expected_file=expected,
            measured_file=measured,
            reference=reference,
            propose=propose,
            only=path.blocks_named(only) if only else None,
            say=typer.echo,
        )
    )


@app.command()
def recommend(
    model: Annotated[str, typer.Option(help="A model of the study.")],
    shape: Annotated[str, typer.Option("--input", help="Like 1x3x224x224 or 8x128.")],
    executions: Annotated[float, typer.Option(help="How often the compiled program will run.")],
    boundary: Annotated[str, typer.Option(help="native, aligned or process.")] = "aligned",
    name: NameOption = "",
    results: ResultsOption = Path("results"),
) -> None:
    """The cheapest configuration for n executions, with its evidence and uncertainty."""
    from artifact.host import judge

    text = judge.recommend(model, shape, executions, boundary, name=name, results=results)
    typer.echo(text)


@app.command()
def audit(
    model: Annotated[str, typer.Option(help="bert or gpt2.")],
    engine: EngineOption = "auto",
) -> None:
    """Which LayerNorms the layers behind could take in, and why the others not."""
    from artifact.host import audit as auditing

    auditing.audit(model, engine, typer.echo)


@app.command()
def ship(
    name: NameOption,
    machine_class: Annotated[str, typer.Option(help="Default: derived from the records.")] = "",
    results: ResultsOption = Path("results"),
) -> None:
    """Copy a campaign into expected/reference/ (maintainers)."""
    from artifact.analysis import evidence, reference

    folder = results / name
    chosen = machine_class or reference.machine_class(evidence.read_campaign(folder))
    typer.echo(f"shipped: {reference.ship(folder, chosen)}")


@app.command()
def crossover(
    model: Annotated[str, typer.Option(help="A model of the study.")],
    shape: Annotated[str, typer.Option("--input", help="Like 1x3x224x224 or 8x128.")],
    first: Annotated[str, typer.Option(help="A configuration, such as xla.")],
    second: Annotated[str, typer.Option(help="Another one, such as inductor-fold.")],
    profile: Annotated[str, typer.Option(help="auto: that of the records.")] = "auto",
    engine: EngineOption = "auto",
    name: Annotated[str, typer.Option("--name", help="The campaign that predicts.")] = "",
    executions: Annotated[int | None, typer.Option(help="Instead of twice the n.")] = None,
    max_minutes: Annotated[float, typer.Option(help="Refuse what would take longer.")] = 30.0,
    resume: Annotated[bool, typer.Option("--resume", help="Run only what is missing.")] = False,
    results: ResultsOption = Path("results"),
    selinux: Annotated[str, typer.Option(help="z or Z: label our output folder.")] = "",
) -> None:
    """Go and look: do two configurations cross where their lines say? (`make crossover`)."""
    from artifact.host import crossover as looking

    question = looking.Question(
        model=model,
        input=shape,
        first=first,
        second=second,
        profile=profile,
        engine=engine,
        name=name,
        executions=executions,
        max_minutes=max_minutes,
        resume=resume,
        results=results,
        selinux=selinux,
    )
    raise typer.Exit(looking.go_and_look(question, typer.echo))


@app.command()
def doctor(
    engine: EngineOption = "auto",
    device: DeviceOption = "auto",
    results: ResultsOption = Path("results"),
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the index.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Strict JSON instead of lines.")] = False,
) -> None:
    """What this machine can do and what to mend: 0 all well, 1 a warning, 2 an error."""
    from artifact import strict_json
    from artifact.host import doctor as examination

    report = examination.run(engine, device, results, offline=offline)
    text = strict_json.dumps(report.plain()) if json else report.text()
    typer.echo(text, nl=False)
    raise typer.Exit(report.exit_code)


@app.command()
def bench(
    results: Annotated[Path, typer.Option(help="Folder of all campaigns.")] = Path("results"),
    folds: Annotated[bool, typer.Option(help="Also time the fold in the inductor image.")] = True,
) -> None:
    """The speed of the artifact itself, as one table (`make bench`)."""
    from artifact.host import bench as table

    typer.echo(table.render(table.lines(results)), nl=False)
    if folds:
        try:
            table.fold_table(typer.echo)
        except UserError as error:
            typer.echo(f"fold: not measured ({error})")


@app.command()
def clean(engine: EngineOption = "auto") -> None:
    """Remove containers or processes that a killed campaign of ours left; results stay."""
    from artifact.host import campaign, machine
    from artifact.host import reproduce as path

    choice = machine.choose(engine, "cpu", "cpu", "cpu")
    for name in dict.fromkeys((choice.engine, "process")):
        one = path.make_engine(dataclasses.replace(choice, engine=name), path.Wish())
        typer.echo(f"{name}: removed {campaign.clean(one)} left over")


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"cannot use {error.filename}: {error.strerror}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main() -> None:
    """Entry point: a `UserError` becomes one line on stderr and its exit code, no traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except UserError as error:
        typer.echo(f"artifact: {error}", err=True)
        sys.exit(error.exit_code)
    except (SchemaError, OSError) as error:
        # A malformed value or a file that cannot be used: for the person, not a defect to trace.
        typer.echo(f"artifact: {_one_line(error)}", err=True)
        sys.exit(2)
    except BaseException as error:
        # Only the campaign's `Interrupted` carries an exit code (130, 143); all else is a defect.
        code = getattr(error, "exit_code", None)
        if code is None or isinstance(error, SystemExit):
            raise
        typer.echo(f"artifact: {error}", err=True)
        sys.exit(code)
