"""A new certificate is used without a restart; a bad one is not used at all."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import duly
from duly.broker import certificates
from duly.clock import HOST

from ..surface.brokers import serving
from .conftest import Folder, TlsBroker, certificate_at

Start = Callable[..., TlsBroker]
PORTS = ("http", "flight")


def eventually(holds: Callable[[], bool], why: str, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def shows(broker: TlsBroker, fingerprint: str, tls: duly.Tls | None = None) -> bool:
    try:
        return all(certificate_at(broker.ports[port], tls) == fingerprint for port in PORTS)
    except OSError:
        # Flight's port is closed for a moment.
        return False


def test_both_ports_show_the_new_one_once_the_files_change(
    broker: TlsBroker, certs: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = certs.fingerprint
    assert shows(broker, old)
    certs.make()
    assert certs.fingerprint != old
    eventually(lambda: shows(broker, certs.fingerprint), "the files are looked at every two seconds")
    with duly.connect(broker.url, tls=certs.tls) as q:
        assert q.list_topics() == []


def test_whoever_is_connected_goes_on_and_loses_nothing(broker: TlsBroker, certs: Folder) -> None:
    ca = Path(certs["ca.pem"]).read_bytes()
    both = Path(certs["both.pem"])
    both.write_bytes(ca)
    stop = threading.Event()
    failed: list[Exception] = []
    published = 0

    with (
        duly.connect(broker.url, tls=duly.Tls(ca=both), timeout=20) as q,
        duly.connect(broker.url, tls=duly.Tls(ca=both), timeout=20) as consumer,
    ):
        q.create_topic("orders", kind="queue")
        claimed: list[bytes] = []

        def consume() -> None:
            try:
                while not stop.is_set() or len(claimed) < published:
                    with consumer.claim("orders", max_messages=10, wait=1) as batch:
                        claimed.extend(batch.payloads)
            except Exception as error:
                failed.append(error)

        consuming = threading.Thread(target=consume)
        consuming.start()
        for _ in range(3):
            for _ in range(5):
                q.publish("orders", str(published).encode())
                published += 1
            certs.make()
            both.write_bytes(Path(certs["ca.pem"]).read_bytes())
            broker.reload()
            eventually(lambda: shows(broker, certs.fingerprint), "it was told to")
        stop.set()
        consuming.join(60)
        assert failed == []
        # At least once: an answer may be lost on its way, and its messages are delivered again.
        assert sorted(set(claimed), key=int) == [str(number).encode() for number in range(published)]


def test_a_session_that_lay_idle_is_not_used_under_the_old_one(broker: TlsBroker, certs: Folder) -> None:
    both = Path(certs["both.pem"])
    both.write_bytes(Path(certs["ca.pem"]).read_bytes())
    with duly.connect(broker.url, tls=duly.Tls(ca=both)) as q:
        q.create_topic("orders", kind="log")
        certs.make()
        broker.reload()
        eventually(lambda: shows(broker, certs.fingerprint), "it was told to")
        with pytest.raises(duly.Unavailable, match="not trusted"):
            q.create_group("orders", "billing")
        both.write_bytes(Path(certs["ca.pem"]).read_bytes())
        q.create_group("orders", "billing")
        eventually(lambda: not broker.served.flight._ending[0].is_alive(), "the old server ends when nobody is on it")


class TestABadOne:
    @pytest.mark.parametrize("bad", ["text", "missing", "another's key", "encrypted key"])
    def test_is_said_in_the_log_and_not_used(
        self,
        broker: TlsBroker,
        certs: Folder,
        bad: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        now = certs.fingerprint
        content = Path(certs["server.pem"]).read_bytes()
        self._spoil(certs, bad, tmp_path)
        with caplog.at_level(logging.ERROR, "duly"):
            broker.reload()
            eventually(lambda: "the present one stays" in caplog.text, "it was told to")
        assert "PRIVATE" not in caplog.text
        assert shows(broker, now)
        if bad in ("text", "missing"):
            Path(certs["server.pem"]).write_bytes(content)
        certs.make()
        eventually(lambda: shows(broker, certs.fingerprint), "a good one is used once it is there")

    def _spoil(self, certs: Folder, bad: str, tmp_path: Path) -> None:
        cert, key = Path(certs["server.pem"]), Path(certs["server.key"])
        if bad == "text":
            cert.write_text("no certificate")
        elif bad == "missing":
            cert.unlink()
        elif bad == "another's key":
            key.write_bytes(Path(Folder(tmp_path / "others").make()["server.key"]).read_bytes())
        else:
            subprocess.run(
                ["openssl", "ec", "-in", str(key), "-out", str(key), "-aes256", "-passout", "pass:secret"],
                check=True,
                capture_output=True,
            )

    def test_that_is_over_is_refused(self, certs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        later = HOST.wall_ns() + 400 * 24 * 3600 * 10**9

        class Later:
            wall_ns = staticmethod(lambda: later)

        monkeypatch.setattr("duly.broker.certificates.HOST", Later)
        with pytest.raises(duly.InvalidArgument, match=r"holds from .* until .*: not now"):
            certs.certificates()

    def test_at_the_start_is_an_error(self, tmp_path: Path, certs: Folder) -> None:
        for name, told in (("nowhere.pem", "cannot be read"), ("server.key", "no certificate")):
            with pytest.raises(duly.InvalidArgument, match=told):
                certificates.Certificates(certs[name], certs["server.key"])
        with pytest.raises(duly.InvalidArgument, match="no CA"):
            certificates.Certificates(certs["server.pem"], certs["server.key"], certs["client.key"])


def test_a_client_ca_that_is_replaced_lets_in_the_new_clients_alone(
    start: Start, certs: Folder, tmp_path: Path
) -> None:
    broker = start(mutual=True)
    old = duly.Tls(
        ca=tmp_path / "trusted.pem", cert=_copy(certs, "client.pem", tmp_path), key=_copy(certs, "client.key", tmp_path)
    )
    certs.make()
    (tmp_path / "trusted.pem").write_bytes(Path(certs["ca.pem"]).read_bytes())
    broker.reload()
    eventually(lambda: shows(broker, certs.fingerprint, certs.mutual), "it was told to")
    with duly.connect(broker.url, tls=certs.mutual) as q:
        assert q.list_topics() == []
    assert httpx.get(f"{broker.http}/v1/topics", verify=certs.mutual.context()).status_code == 200
    with duly.connect(broker.url, tls=old) as q, pytest.raises(duly.Unavailable, match="client certificate"):
        q.list_topics()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{broker.http}/v1/topics", verify=old.context())


def _copy(certs: Folder, name: str, to: Path) -> Path:
    (to / name).write_bytes(Path(certs[name]).read_bytes())
    return to / name


def test_sighup_has_them_read_at_once(certs: Folder, tmp_path: Path) -> None:
    options = ["--json", "--http-port", "0", "--flight-port", "0"]
    files = ["--tls-cert", certs["server.pem"], "--tls-key", certs["server.key"]]
    with serving(tmp_path, *options, *files) as broker:
        told = broker.document
        assert told["tls"] is True
        assert told["url"].startswith("duly+tls://")
        assert told["http_url"].startswith("https://")
        for port in ("http_port", "flight_port"):
            assert certificate_at(told[port]) == certs.fingerprint
        certs.make()
        broker.process.send_signal(signal.SIGHUP)

        def changed() -> bool:
            try:
                ports = ("http_port", "flight_port")
                return all(certificate_at(told[port]) == certs.fingerprint for port in ports)
            except OSError:
                return False

        eventually(changed, "SIGHUP")
        code, _, err = broker.ended(signal.SIGTERM)
    assert code == 0
    assert "the certificate was changed" in err
    assert "Traceback" not in err
