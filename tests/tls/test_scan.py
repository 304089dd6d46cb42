"""What a scanner finds on both ports: TLS 1.2 and 1.3, strong suites, nothing else."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import Folder, TlsBroker, shake

PORTS = ("http", "flight")
STRONG = ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384")


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    folder = tmp_path_factory.mktemp("scan")
    broker = TlsBroker(str(folder / "app.duly"), Folder(folder / "certs").make().certificates())
    yield broker
    broker.close()


def anyone(version: ssl.TLSVersion | None = None, suites: str = "ALL:COMPLEMENTOFALL") -> ssl.SSLContext:
    """A client that is content with anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = version or ssl.TLSVersion.MINIMUM_SUPPORTED
    if version is not None:
        context.maximum_version = version
    context.set_ciphers(f"{suites}:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("port", PORTS)
def test_whoever_can_gets_1_3(scanned: TlsBroker, port: str) -> None:
    with shake(scanned.ports[port], anyone()) as line:
        assert line.version() == "TLSv1.3"


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_what_is_older_than_1_2_is_refused(scanned: TlsBroker, port: str, version: str) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake(scanned.ports[port], anyone(ssl.TLSVersion[version]))


def old_suites() -> list[str]:
    """Every suite of TLS 1.2 that this machine's OpenSSL could still use, one by one."""
    known = anyone(ssl.TLSVersion.TLSv1_2).get_ciphers()
    return [found["name"] for found in known if found["protocol"] != "TLSv1.3"]


@pytest.mark.parametrize("port", PORTS)
def test_of_1_2_only_forward_secrecy_with_authenticated_encryption_is_taken(scanned: TlsBroker, port: str) -> None:
    taken = set()
    offered = old_suites()
    assert len(offered) > 20, "the test is to offer weak ones"
    for suite in offered:
        try:
            with shake(scanned.ports[port], anyone(ssl.TLSVersion.TLSv1_2, suite)) as line:
                found = line.cipher()
                taken.add(found[0] if found else suite)
        except (ssl.SSLError, ConnectionError):
            continue
    assert {*STRONG} <= taken
    assert all(suite.startswith("ECDHE-") and ("GCM" in suite or "CHACHA20" in suite) for suite in taken), taken


@pytest.mark.skipif(shutil.which("sslscan") is None, reason="there is no sslscan here: apt install sslscan")
@pytest.mark.parametrize("port", PORTS)
def test_sslscan_finds_nothing_to_complain_of(scanned: TlsBroker, port: str) -> None:
    command = ["sslscan", "--no-colour", "--xml=-", f"127.0.0.1:{scanned.ports[port]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    root = ElementTree.fromstring(done.stdout[done.stdout.index("<?xml") :])
    protocols = {
        f"{found.get('type')} {found.get('version')}" for found in root.iter("protocol") if found.get("enabled") == "1"
    }
    assert protocols == {"tls 1.2", "tls 1.3"}
    assert {found.get("strength") for found in root.iter("cipher")} <= {"strong", "acceptable"}
    assert all(found.get("vulnerable") == "0" for found in root.iter("heartbleed"))
    assert all(found.get("supported") != "1" for found in root.iter("compression"))
    for found in root.iter("renegotiation"):
        assert found.get("supported") == "0" or found.get("secure") == "1"


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "certs").make()
    for name in ("ca.key", "server.key", "client.key"):
        assert Path(folder[name]).stat().st_mode & 0o077 == 0
