"""What an image build borrows from this machine: pip and apt settings, CA bundle, proxies.

They reach a build only as BuildKit secrets, mounted for one instruction each, and as Docker's
predefined proxy arguments, which never enter an image or its history.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from artifact.errors import UserError

#: Where the Dockerfiles find the CA secret while an instruction runs.
CA_IN_BUILD = "/run/secrets/ca"

#: Docker takes these without an ARG and leaves them out of images and history.
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")

#: pip options that make sense inside a build. Options that name files of this machine do not.
PIP_URL_OPTIONS = ("index-url", "extra-index-url")
PIP_PLAIN_OPTIONS = ("proxy", "retries", "timeout", "trusted-host")

#: Environment variables that name a CA bundle; pip's own option goes before them.
CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")

APT_OPTIONS = re.compile(
    r"^Acquire::(https?::Proxy(::[\w.-]+)?|Retries|Check-Valid-Until|Check-Date) ", re.IGNORECASE
)


def proxy_arguments(environment: Mapping[str, str]) -> list[str]:
    """`--build-arg NAME` for each proxy variable that is set; docker reads the values itself."""
    names = [name for upper in PROXY_NAMES for name in (upper, upper.lower())]
    return [word for name in names if environment.get(name) for word in ("--build-arg", name)]


def pip_options(listing: str) -> dict[str, str]:
    """Effective pip options from the text that `pip config list` prints.

    The environment goes before a section of `pip install`, which goes before the global one.
    """
    found: dict[str, dict[str, str]] = {":env:": {}, "install": {}, "global": {}}
    for line in listing.splitlines():
        name, separator, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if separator and section in found:
            option = {"default-timeout": "timeout"}.get(option, option)
            found[section][option] = str(ast.literal_eval(value))
    return found["global"] | found["install"] | found[":env:"]


def pip_configuration(options: Mapping[str, str], has_ca: bool) -> str:
    """A pip.conf for use inside a build; options that name files of this machine are left out."""
    lines = ["[global]"]
    for option in PIP_URL_OPTIONS:
        urls = [url for url in options.get(option, "").split() if re.match("https?://", url)]
        if urls:
            lines.append(f"{option} = " + "\n    ".join(urls))
    lines += [
        f"{option} = {options[option]}" for option in PIP_PLAIN_OPTIONS if options.get(option)
    ]
    if has_ca:
        lines.append(f"cert = {CA_IN_BUILD}")
    return "\n".join(lines) + "\n"


def apt_configuration(dump: str, has_ca: bool) -> str:
    """An apt.conf for use inside a build, from the text that `apt-config dump` prints."""
    lines = [line for line in dump.splitlines() if APT_OPTIONS.match(line)]
    if has_ca:
        lines.append(f'Acquire::https::CaInfo "{CA_IN_BUILD}";')
    return "".join(line + "\n" for line in lines)


def ca_bundle(pip: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """The CA bundle this machine was told to use, or None where nobody named one.

    Raises `UserError` where a named file does not exist: the build would fail later, less clearly.
    """
    named = [("pip's option cert", pip.get("cert", ""))]
    named += [(name, environment.get(name, "")) for name in CA_VARIABLES]
    for source, value in named:
        if value:
            if not Path(value).is_file():
                raise UserError(f"no CA bundle at {value}", next_step=f"correct or unset {source}")
            return Path(value)
    return None


def write_secrets(
    directory: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> list[str]:
    """Write the secrets into the private `directory`; return `--secret` arguments."""
    pip = pip_options(_pip_listing(environment, say))
    ca = ca_bundle(pip, environment)
    if pip.get("index-url", "").startswith("file:"):
        say("pip's index-url is a folder here, which a build cannot see: using pip's default")
    texts = {
        "pipconf": pip_configuration(pip, ca is not None),
        "aptconf": apt_configuration(_apt_dump(environment), ca is not None),
    }
    sources = {} if ca is None else {"ca": ca}
    for name, text in texts.items():
        sources[name] = directory / name
        sources[name].write_text(text, encoding="utf-8")
        sources[name].chmod(0o600)
    return [
        word for name, path in sources.items() for word in ("--secret", f"id={name},src={path}")
    ]


def _pip_listing(environment: Mapping[str, str], say: Callable[[str], None]) -> str:
    """`pip config list` of this interpreter, else of the pip on PATH; empty without either."""
    on_path = shutil.which("pip3", path=environment.get("PATH"))
    for command in ([sys.executable, "-m", "pip"], [on_path] if on_path else []):
        if not command:
            continue
        result = subprocess.run(
            [*command, "config", "list"], capture_output=True, text=True, env=dict(environment)
        )
        if result.returncode == 0:
            return result.stdout
    say("no pip on this machine: builds use pip's defaults, without this machine's index settings")
    return ""


def _apt_dump(environment: Mapping[str, str]) -> str:
    """`apt-config dump`; empty on a machine without apt."""
    command = shutil.which("apt-config", path=environment.get("PATH"))
    if command is None:
        return ""
    return subprocess.run(
        [command, "dump"], capture_output=True, text=True, check=True, env=dict(environment)
    ).stdout
