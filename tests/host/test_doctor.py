"""Every state of every check on pretended machines; the report; nothing is ever changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from artifact.cli import app
from artifact.errors import UserError
from artifact.host import doctor, reproduce
from artifact.host.doctor import Disk, Finding, Ran, Report, System
from artifact.host.machine import Choice
from artifact.strict_json import dumps, loads

INFORMATION = {
    "ServerVersion": "27.1",
    "OperatingSystem": "Some Linux",
    "OSType": "linux",
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "DockerRootDir": "/var/lib/docker",
    "SecurityOptions": ["name=seccomp,profile=default"],
    "MemoryLimit": True,
    "PidsLimit": True,
    "CPUSet": True,
    "Runtimes": {"runc": {}},
}
FILES = {
    "proc/meminfo": "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 25165824 kB",
    "proc/loadavg": "0.10 0.50 0.50 1/100 4242",
    "proc/cpuinfo": "model name : a CPU\nflags : fpu sse avx2",
    "sys/devices/system/cpu/online": "0-3",
    "sys/devices/system/cpu/smt/active": "0",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "var/lib/docker/here": "",
}
IMAGES = "gaps-artifact/inductor\ngaps-artifact/xla\ngaps-artifact/tvm\n"
NOT_THERE = Ran(None, errors="No such file or directory")
GPU = Ran(0, "NVIDIA A100, 550.1\n")
NVIDIA = {"Runtimes": {"runc": {}, "nvidia": {}}}
CPU = "sys/devices/system/cpu"
ROOM = 100_000_000_000


class Machine:
    """A healthy machine; a test changes what it is about. Commands are told by their words."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.docker: dict[str, Any] | str = dict(INFORMATION)
        self.files: dict[str, str | None] = dict(FILES)
        self.commands: dict[str, Ran] = {
            "buildx version": Ran(0, "github.com/docker/buildx v0.14\n"),
            "image ls": Ran(0, IMAGES),
            "index versions": Ran(0, "pip (25.0)\n"),
            "NTPSynchronized": Ran(0, "yes\n"),
        }
        self.more: dict[str, Any] = {}
        self.ran: list[Sequence[str]] = []

    def system(self) -> System:
        for name, text in self.files.items():
            if text is not None:
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{text}\n", encoding="utf-8")
        times = iter([(100.0, 5.0), (100.2, 5.2)])
        pretended: dict[str, Any] = {
            "environment": {},
            "uid": 1000,
            "run": self.run,
            "docker": lambda: self.docker,
            "disk": lambda path: Disk(1, ROOM),
            "on_path": lambda name: ("/usr/bin/docker",),
            "importable": lambda name: True,
            "lacking_for_processes": lambda: None,
            "effective_cpus": lambda root: 4,
            "allowed_cpus": lambda: 4,
            "clocks": lambda: next(times),
            "sleep": lambda seconds: None,
        }
        return System(root=self.root, **(pretended | self.more))

    def run(self, command: Sequence[str], timeout_s: float) -> Ran:
        self.ran.append(command)
        words = " ".join(command)
        return next((ran for key, ran in self.commands.items() if key in words), NOT_THERE)

    def report(self, engine: str = "auto", device: str = "auto", **more: Any) -> Report:
        return doctor.run(engine, device, Path("results"), system=self.system(), **more)


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def found(machine) -> Callable[..., Finding]:
    """The finding of one check on the machine as the test has changed it."""
    return lambda check, *args, **more: machine.report(*args, **more).findings[check]


def test_a_healthy_machine_has_nothing_to_mend(machine) -> None:
    report = machine.report()
    states = {name: finding.state for name, finding in report.findings.items()}
    assert set(states.values()) == {"ok"}, states
    assert (report.engine, report.exit_code, report.alarms()) == ("docker", 0, [])


def test_the_checks_that_were_asked_for_are_all_there() -> None:
    assert {check.name for check in doctor.CHECKS} == {
        *("host packages", "docker", "permission", "buildkit", "rootless", "limits", "selinux"),
        *("process tools", "package index", "disk", "memory", "cpus", "governor", "turbo", "smt"),
        *("load", "gpu", "clock"),
    }


def test_only_questions_are_run(machine) -> None:
    """No command that builds, pulls, starts or writes: these words are all that is ever asked."""
    machine.commands["buildx version"] = NOT_THERE
    machine.report("docker", "cuda")
    asked = {" ".join(command[1:3]) for command in machine.ran}
    assert asked == {
        "buildx version",
        "version --format",
        "image ls",
        "-m pip",
        "--query-gpu=name,driver_version --format=csv,noheader",
        "show -p",
    }
    pip = next(command for command in machine.ran if "pip" in command)
    assert "index" in pip and not {"install", "download"} & set(pip)
    assert not any("://" in word or ".org" in word for word in pip)


# --- the report -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("states", "worst", "code"),
    [
        (["ok", "advice"], "advice", 0),
        (["advice", "warning", "ok"], "warning", 1),
        (["error", "warning"], "error", 2),
        ([], "ok", 0),
    ],
)
def test_the_worst_state_decides_the_exit_code(states, worst, code) -> None:
    findings = {str(i): Finding(state, "m", "next") for i, state in enumerate(states)}
    report = Report("docker", "cpu", findings)
    assert (report.state, report.exit_code) == (worst, code)


def test_alarms_are_one_line_each_and_errors_come_first() -> None:
    findings = {
        "a": Finding("warning", "busy", "wait"),
        "b": Finding("advice", "could be better"),
        "c": Finding("error", "no room", "make room"),
    }
    assert Report("docker", "cpu", findings).alarms() == [
        "doctor: error: c: no room; make room",
        "doctor: warning: a: busy; wait",
    ]


def test_a_warning_without_a_next_step_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a next step"):
        Finding("warning", "something is wrong")
    with pytest.raises(ValueError, match="expected one of ok, advice, warning, error"):
        Finding("fine", "")


def test_the_plain_report_is_strict_json_with_every_check(machine) -> None:
    machine.files["proc/loadavg"] = "9.0 1 1 1/1 1"
    report = machine.report()
    plain = loads(dumps(report.plain()))
    assert [entry["check"] for entry in plain["checks"]] == [c.name for c in doctor.CHECKS]
    assert (plain["state"], plain["exit_code"], plain["engine"]) == ("warning", 1, "docker")
    by_name = {entry["check"]: entry for entry in plain["checks"]}
    assert by_name["load"]["facts"] == {"load_1min": 9.0}
    assert by_name["memory"]["facts"]["total_bytes"] == 32 << 30


def test_the_text_shows_the_next_step_below_its_check(machine) -> None:
    machine.files["proc/loadavg"] = "9.0 1 1 1/1 1"
    text = machine.report().text()
    lines = text.splitlines()
    index = next(i for i, line in enumerate(lines) if line.startswith("warning load"))
    assert lines[index + 1].strip().startswith("next: end other programs")
    assert lines[-1] == "engine docker, device auto: 17 ok, 1 warning"
    assert text.isascii()


def test_an_unknown_engine_or_device_is_one_line(machine) -> None:
    with pytest.raises(UserError, match="unknown engine 'podman'; use auto, docker, process"):
        machine.report("podman")
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        machine.report("docker", "gpu")


# --- the engine -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("engine", "state", "comes_to"),
    [("docker", "error", "docker"), ("auto", "warning", "process"), ("process", "ok", "process")],
)
def test_no_engine_matters_as_much_as_it_was_asked_for(machine, engine, state, comes_to) -> None:
    machine.docker = "no Docker engine answers"
    report = machine.report(engine)
    assert report.findings["docker"].state == state
    assert report.engine == comes_to
    assert report.findings["permission"].state == "ok"


@pytest.mark.parametrize(
    ("engine", "state"), [("docker", "error"), ("auto", "warning"), ("process", "ok")]
)
def test_no_permission_names_the_group(machine, found, engine, state) -> None:
    machine.docker = "no permission to use the Docker engine (add yourself to the group docker)"
    finding = found("permission", engine)
    assert finding.state == state
    assert "user 1000 may not use the engine" in finding.message
    assert state == "ok" or "group docker" in finding.next_step


def test_root_is_told_that_containers_are_not(machine, found) -> None:
    machine.more["uid"] = 0
    assert found("permission").message.startswith("root may use the engine; containers run as")


def test_windows_containers_are_an_error(machine, found) -> None:
    machine.docker = INFORMATION | {"OSType": "windows"}
    assert found("docker", "docker").state == "error"
    assert found("docker", "process").state == "advice"


@pytest.mark.parametrize(
    ("version", "able"),
    [
        ("20.10.24", True),
        ("18.09.1", True),
        ("18.06.0", False),
        ("23.0.1", False),
        ("28.2.2", False),
        ("", False),
    ],
)
def test_buildkit_is_told_by_version_where_the_plugin_is_missing(
    machine, found, version, able
) -> None:
    machine.commands["buildx version"] = Ran(1, errors="unknown command")
    machine.commands["version --format"] = Ran(0, f"{version}\n")
    finding = found("buildkit")
    assert (finding.state == "ok") is able
    assert able or "docker-buildx" in finding.next_step


def test_the_second_docker_command_on_path_may_be_the_one_that_builds(machine, found) -> None:
    machine.commands = {
        "/new/docker version": Ran(0, "28.2.2"),
        "/old/docker version": Ran(0, "20.10.24"),
    }
    machine.more["on_path"] = lambda name: ("/new/docker", "/old/docker")
    finding = found("buildkit")
    assert finding.state == "ok"
    assert finding.facts == {"command": "/old/docker"}
    machine.more["environment"] = {"DOCKER": "/new/docker"}
    assert "28.2.2 without its buildx plug-in" in found("buildkit").message


def test_without_a_builder_existing_images_can_still_be_used(machine, found) -> None:
    machine.commands["buildx version"] = NOT_THERE
    assert found("buildkit", "docker").state == "warning"
    machine.commands["image ls"] = Ran(0, "gaps-artifact/inductor\ngaps-artifact/xla-test\n")
    assert found("buildkit", "docker").state == "error"
    assert found("buildkit", "process").state == "ok"


@pytest.mark.parametrize(("cgroup", "state"), [("1", "warning"), ("2", "advice")])
def test_a_rootless_engine(machine, found, cgroup, state) -> None:
    rootless = {"SecurityOptions": ["name=seccomp", "name=rootless"], "CgroupVersion": cgroup}
    machine.docker = INFORMATION | rootless
    assert found("rootless").state == state


def test_a_limit_that_the_engine_cannot_set_is_named(machine, found) -> None:
    machine.docker = INFORMATION | {"PidsLimit": False, "CPUSet": False}
    finding = found("limits")
    assert finding.state == "warning"
    assert finding.message == "the engine cannot limit: number of processes, CPU set"


@pytest.mark.parametrize(
    ("mode", "options", "engine", "state"),
    [
        ("1", ["name=selinux"], "docker", "warning"),
        ("1", ["name=selinux"], "process", "ok"),
        ("1", [], "docker", "ok"),
        ("0", ["name=selinux"], "docker", "ok"),
    ],
)
def test_selinux_matters_where_it_separates_containers(
    machine, found, mode, options, engine, state
) -> None:
    machine.files["sys/fs/selinux/enforce"] = mode
    machine.docker = INFORMATION | {"SecurityOptions": options}
    finding = found("selinux", engine)
    assert finding.state == state
    assert state == "ok" or "--selinux z" in finding.next_step


# --- GPU --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "information", "engine", "device", "state"),
    [
        (NOT_THERE, {}, "docker", "auto", "ok"),
        (NOT_THERE, {}, "docker", "cuda", "error"),
        (Ran(0, "\n"), {}, "docker", "cuda", "error"),
        (GPU, {}, "docker", "auto", "warning"),
        (GPU, {}, "docker", "cuda", "error"),
        (GPU, {}, "docker", "cpu", "ok"),
        (GPU, {}, "process", "cuda", "ok"),
        (GPU, NVIDIA, "docker", "cuda", "ok"),
    ],
)
def test_a_gpu_needs_driver_and_toolkit(
    machine, found, answer, information, engine, device, state
) -> None:
    machine.commands["nvidia-smi"] = answer
    machine.docker = INFORMATION | information
    assert found("gpu", engine, device).state == state


def test_a_gpu_is_shown_with_its_driver(machine, found) -> None:
    machine.commands["nvidia-smi"] = GPU
    machine.docker = INFORMATION | NVIDIA
    assert found("gpu").message == "NVIDIA A100, 550.1"


# --- programs ---------------------------------------------------------------------------------
def test_a_missing_package_is_an_error_that_names_it(machine) -> None:
    """Case N6; nothing else may fall over because of it."""
    machine.more["importable"] = lambda name: name not in ("docker", "scipy")
    report = machine.report()
    assert report.findings["host packages"].message == "this Python lacks docker, scipy"
    assert report.exit_code == 2
    assert report.findings["docker"].state == "warning"


def test_the_process_engine_needs_its_tools(machine, found) -> None:
    lacks = "the process engine lacks g++ for inductor; install g++ (Debian's names)"
    machine.more["lacking_for_processes"] = lambda: lacks
    finding = found("process tools", "process")
    assert finding.state == "error"
    assert finding.next_step == "install g++ (Debian's names)"
    assert found("process tools", "docker").state == "ok"


def test_a_silent_index_matters_only_where_something_must_be_built(machine, found) -> None:
    machine.commands["index versions"] = Ran(1, errors="http://user:secret@index/simple refused")
    assert found("package index", "docker").state == "advice"
    assert found("package index", "process").state == "warning"
    machine.commands["image ls"] = Ran(0, "")
    finding = found("package index", "docker")
    assert finding.state == "warning"
    assert "secret" not in dumps(machine.report().plain())


def test_offline_leaves_the_index_alone(machine, found) -> None:
    assert found("package index", offline=True).message == "not asked (--offline)"
    assert not any("pip" in command for command in machine.ran)


def test_a_python_without_pip_says_so(machine, found) -> None:
    machine.commands["index versions"] = Ran(1, errors="/x/python: No module named pip")
    assert found("package index").message == "unknown: this Python has no pip"


# --- the machine ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("free_gb", "images", "engine", "state"),
    [
        (11.0, "", "docker", "error"),  # 9.5 GB of images and 2 GB of results on one disk
        (11.6, "", "docker", "ok"),
        (2.1, IMAGES, "docker", "ok"),
        (1.9, IMAGES, "docker", "warning"),
        (11.0, "", "process", "warning"),
    ],
)
def test_room_for_images_and_results_on_one_disk(
    machine, found, free_gb, images, engine, state
) -> None:
    machine.commands["image ls"] = Ran(0, images)
    machine.more["disk"] = lambda path: Disk(1, int(free_gb * 1e9))
    assert found("disk", engine).state == state


def test_two_disks_are_counted_apart(machine, found) -> None:
    machine.commands["image ls"] = Ran(0, "")
    free = {Path("results"): Disk(1, int(2.5e9)), Path("/var/lib/docker"): Disk(2, int(10e9))}
    machine.more["disk"] = free.__getitem__
    finding = found("disk")
    assert finding.state == "ok"
    assert finding.message == "2.5 GB free, 2.0 GB needed; 10.0 GB free, 9.5 GB needed"


@pytest.mark.parametrize("host", ["tcp://elsewhere:2376", "ssh://elsewhere"])
def test_the_disk_of_another_machine_cannot_be_seen(machine, found, host) -> None:
    machine.more["environment"] = {"DOCKER_HOST": host}
    finding = found("disk")
    assert finding.state == "advice"
    assert "cannot see where Docker keeps images" in finding.message


def test_an_engine_in_a_vm_keeps_its_images_there(machine, found) -> None:
    machine.files["var/lib/docker/here"] = None
    assert found("disk").facts["unseen"] == ["where Docker keeps images"]


@pytest.mark.parametrize(
    ("total_gib", "available_gib", "limit", "state"),
    [
        (32, 24, None, "ok"),
        (32, 24, "max", "ok"),
        (32, 7, None, "warning"),
        (10, 9, None, "advice"),
        (32, 24, str(6 << 30), "warning"),
        (32, 24, str(10 << 30), "advice"),
    ],
)
def test_memory(machine, found, total_gib, available_gib, limit, state) -> None:
    kib = 1 << 20
    machine.files["proc/meminfo"] = (
        f"MemTotal: {total_gib * kib} kB\nMemAvailable: {available_gib * kib} kB"
    )
    machine.files["sys/fs/cgroup/memory.max"] = limit
    assert found("memory").state == state


def test_a_v1_group_without_a_limit_has_none(machine, found) -> None:
    machine.files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712"
    assert found("memory").facts["limit_bytes"] is None


def test_one_cpu_is_too_few_and_a_quota_is_said(machine, found) -> None:
    assert found("cpus").message == "4 usable (online: 0-3)"
    machine.files["sys/fs/cgroup/cpu.max"] = "300000 100000"
    finding = found("cpus")
    assert (finding.state, finding.facts["quota"]) == ("advice", "300000 100000")
    machine.files["sys/fs/cgroup/cpu.max"] = "max 100000"
    machine.more["effective_cpus"] = lambda root: 3
    assert found("cpus").facts["quota"] == "3 of 4 CPUs"
    machine.more["effective_cpus"] = lambda root: 1
    assert found("cpus").state == "warning"


@pytest.mark.parametrize(
    ("path", "text", "quota"),
    [
        ("cpu.max", "max 100000", None),
        ("cpu/cpu.cfs_quota_us", "-1", None),
        ("cpu,cpuacct/cpu.cfs_quota_us", "150000", "150000"),
    ],
)
def test_the_quota_is_read_in_both_versions_of_cgroups(machine, found, path, text, quota) -> None:
    machine.files[f"sys/fs/cgroup/{path}"] = text
    assert found("cpus").facts["quota"] == quota


def test_one_cpu_with_another_governor_is_seen(machine, found) -> None:
    machine.files[f"{CPU}/cpu1/cpufreq/scaling_governor"] = "powersave"
    finding = found("governor")
    assert (finding.state, finding.message) == ("advice", "performance, powersave")


@pytest.mark.parametrize(
    ("intel", "boost", "state", "on"),
    [
        ("0", None, "advice", True),
        ("1", None, "ok", False),
        (None, "1", "advice", True),
        (None, "0", "ok", False),
    ],
)
def test_turbo_on_intel_and_elsewhere(machine, found, intel, boost, state, on) -> None:
    machine.files[f"{CPU}/intel_pstate/no_turbo"] = intel
    machine.files[f"{CPU}/cpufreq/boost"] = boost
    finding = found("turbo")
    assert (finding.state, finding.facts) == (state, {"turbo": on})


def test_two_threads_a_core(machine, found) -> None:
    machine.files[f"{CPU}/smt/active"] = "1"
    assert found("smt").state == "advice"


@pytest.mark.parametrize(
    ("check", "path"),
    [
        ("governor", "cpu[0-1]/cpufreq/scaling_governor"),
        ("turbo", "intel_pstate/no_turbo"),
        ("smt", "smt/active"),
    ],
)
def test_what_a_virtual_machine_hides_is_unknown_not_fine(machine, found, check, path) -> None:
    for name in list(machine.files):
        if Path(name).match(f"{CPU}/{path}"):
            machine.files[name] = None
    finding = found(check)
    assert (finding.state, finding.message) == ("advice", "unknown: this kernel does not say")
    machine.files["proc/cpuinfo"] = "flags : fpu hypervisor"
    assert found(check).message == "unknown: a virtual machine hides it"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("0.79 9 9 1/1 1", "ok"),  # of 4 CPUs
        ("0.81 9 9 1/1 1", "advice"),
        ("2.01 9 9 1/1 1", "warning"),
        ("not a number", "advice"),
        (None, "advice"),
    ],
)
def test_load_counts_against_the_cpus(machine, found, text, state) -> None:
    machine.files["proc/loadavg"] = text
    assert found("load").state == state


@pytest.mark.parametrize(
    ("second", "source", "answer", "state"),
    [
        ((100.2, 5.2), "tsc", Ran(0, "yes\n"), "ok"),
        ((100.2, 5.2), "tsc", NOT_THERE, "ok"),
        ((100.2, 5.2), "tsc", Ran(0, "no\n"), "advice"),
        ((100.2, 5.2), "hpet", Ran(0, "yes\n"), "advice"),
        ((99.2, 5.2), "tsc", Ran(0, "yes\n"), "warning"),
    ],
)
def test_the_clocks(machine, found, second, source, answer, state) -> None:
    readings = iter([(100.0, 5.0), second])
    machine.more["clocks"] = lambda: next(readings)
    machine.files["sys/devices/system/clocksource/clocksource0/current_clocksource"] = source
    machine.commands["NTPSynchronized"] = answer
    finding = found("clock")
    assert finding.state == state
    assert finding.facts["synchronised"] is {"yes\n": True, "no\n": False}.get(answer.output)


# --- the real system --------------------------------------------------------------------------
def test_a_command_that_is_not_there_or_hangs_is_no_exit_code() -> None:
    assert doctor.system.run_command(["/no/such/command"], 1.0).code is None
    assert doctor.system.run_command(["sleep", "5"], 0.1).errors == "no answer in 0 s"
    assert doctor.system.run_command(["sh", "-c", "echo a; exit 3"], 5.0) == Ran(3, "a\n")


def test_the_disk_of_a_folder_that_is_not_there_yet_is_its_parents(tmp_path) -> None:
    disk = doctor.system.disk_at(tmp_path / "not" / "yet")
    assert disk is not None
    assert disk.device == tmp_path.stat().st_dev
    assert not (tmp_path / "not").exists()


# --- `make reproduce` -------------------------------------------------------------------------
def test_a_campaign_starts_with_the_doctor_and_keeps_the_whole_report(monkeypatch) -> None:
    findings = {"load": Finding("warning", "busy", "wait"), "smt": Finding("advice", "on")}
    monkeypatch.setattr(doctor, "run", lambda *asked: Report(asked[0], asked[1], findings))
    said: list[str] = []
    choice = Choice("docker", "cpu", "cpu", ())
    stored = reproduce.examine(choice, Path("results"), said.append)
    assert said == ["doctor: warning: load: busy; wait"]
    assert stored["choice"]["engine"] == "docker"
    assert [entry["check"] for entry in stored["report"]["checks"]] == ["load", "smt"]
    assert loads(dumps(stored))["report"]["exit_code"] == 1


def test_nothing_is_examined_for_an_engine_that_measures_nothing(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "run", lambda *asked: pytest.fail("examined"))
    stored = reproduce.examine(Choice("fake", "cpu", "cpu", ()), Path("results"), print)
    assert set(stored) == {"choice"}


# --- the command line -------------------------------------------------------------------------
@pytest.mark.parametrize(("state", "code"), [("advice", 0), ("warning", 1), ("error", 2)])
def test_the_command_exits_with_the_reports_code_as_text_and_as_json(
    monkeypatch, state, code
) -> None:
    report = Report("docker", "cpu", {"load": Finding(state, "busy", "wait")})
    asked: list[Any] = []
    monkeypatch.setattr(doctor, "run", lambda *args, **more: asked.append((args, more)) or report)
    runner = CliRunner()
    plain = runner.invoke(app, ["doctor", "--engine", "docker", "--device", "cpu", "--json"])
    assert (plain.exit_code, loads(plain.output)) == (code, report.plain())
    text = runner.invoke(app, ["doctor", "--offline"])
    assert (text.exit_code, text.output) == (code, report.text())
    assert asked == [
        (("docker", "cpu", Path("results")), {"offline": False}),
        (("auto", "auto", Path("results")), {"offline": True}),
    ]
