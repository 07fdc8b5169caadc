"""What a build borrows from this machine, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifact.errors import UserError
from artifact.host import build_settings

LISTING = """\
:env:.default-timeout='180'
:env:.find-links='/opt/somewhere'
global.cert='/etc/ca.crt'
global.constraint='/etc/constraints.txt'
global.extra-index-url='file:///srv/simple https://extra.example/simple'
global.index-url='https://user:secret@first.example/simple'
global.timeout='15'
install.index-url='https://user:secret@second.example/simple'
"""


def test_pip_options_environment_before_command_before_global() -> None:
    options = build_settings.pip_options(LISTING)
    assert options["timeout"] == "180"
    assert options["index-url"] == "https://user:secret@second.example/simple"
    assert options["cert"] == "/etc/ca.crt"


def test_pip_configuration_keeps_web_indexes_and_drops_files_of_this_machine() -> None:
    text = build_settings.pip_configuration(build_settings.pip_options(LISTING), has_ca=True)
    assert text == (
        "[global]\n"
        "index-url = https://user:secret@second.example/simple\n"
        "extra-index-url = https://extra.example/simple\n"
        "timeout = 180\n"
        "cert = /run/secrets/ca\n"
    )


def test_pip_configuration_of_a_machine_with_files_only_is_empty() -> None:
    options = {"index-url": "file:///srv/simple", "extra-index-url": "file:///a file:///b"}
    assert build_settings.pip_configuration(options, has_ca=False) == "[global]\n"


def test_apt_configuration_takes_proxies_and_retries_only() -> None:
    dump = (
        'APT::Architecture "amd64";\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Proxy::deb.example "DIRECT";\n'
        'Acquire::Retries "3";\n'
        'Acquire::http::Proxy-Auto-Detect "/usr/local/bin/detect";\n'
        'Dir::Etc "etc/apt";\n'
    )
    assert build_settings.apt_configuration(dump, has_ca=True) == (
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::Proxy::deb.example "DIRECT";\n'
        'Acquire::Retries "3";\n'
        'Acquire::https::CaInfo "/run/secrets/ca";\n'
    )


def test_ca_bundle_pip_first_then_environment(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()
    environment = {"SSL_CERT_FILE": str(second)}
    assert build_settings.ca_bundle({"cert": str(first)}, environment) == first
    assert build_settings.ca_bundle({}, environment) == second
    assert build_settings.ca_bundle({}, {}) is None
    with pytest.raises(UserError, match="SSL_CERT_FILE"):
        build_settings.ca_bundle({}, {"SSL_CERT_FILE": str(tmp_path / "none")})


def test_proxies_are_passed_by_name_so_that_no_value_shows() -> None:
    environment = {"https_proxy": "http://user:secret@proxy:1", "NO_PROXY": "a", "HTTP_PROXY": ""}
    arguments = build_settings.proxy_arguments(environment)
    assert arguments == ["--build-arg", "https_proxy", "--build-arg", "NO_PROXY"]


def test_secrets_are_private_files_and_their_values_no_arguments(tmp_path: Path) -> None:
    """With an empty PATH there is no apt; pip is asked with the environment given."""
    authority = tmp_path / "ca.crt"
    authority.touch()
    environment = {
        "PATH": "",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "https://user:secret@first.example/simple",
        "SSL_CERT_FILE": str(authority),
    }
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    said: list[str] = []
    arguments = build_settings.write_secrets(secrets, environment, said.append)
    assert f"id=ca,src={authority}" in arguments
    assert "secret@" not in " ".join(arguments)
    assert "user:secret@first.example" in (secrets / "pipconf").read_text(encoding="utf-8")
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}
    assert said == []
