"""What pushes may connect to: nothing that is not public, however it is written, unless the operator says so."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import duly
from duly.broker.pushes.lookups import Found, Lookups
from duly.broker.pushes.reach import OutOfReach, Reach
from duly.certificates import make_development_certificates
from duly.push import PushAnswer, RunningPush, ToHttp
from tests.push.conftest import Pushing
from tests.push.receiver import Receiver, http
from tests.store.patience import eventually

V4, V6 = socket.AF_INET, socket.AF_INET6

INSIDE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),
    *("169.254.169.254", "169.254.0.1", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8", "100::1"),
    *("2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:db8::1"),
    *("2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1", "3fff::1", "4000::1", "5f00::1"),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1111%eth0", "fec0::1", "ff02::1"),
    *("localhost", "", "2130706433", "0x7f.1", "127.1", "1.2.3.4.5"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_not_public_is_out_of_reach(address: str) -> None:
    with pytest.raises(OutOfReach, match="--push-allow"):
        Reach().check(address, 443, name="example.com")


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_in_reach_at_two_ports(address: str) -> None:
    for port in (80, 443):
        Reach().check(address, port, name="example.com")
    for port in (0, 22, 25, 8080, 8470, 65_535):
        with pytest.raises(OutOfReach):
            Reach().check(address, port, name="example.com")


def test_operator_allows_networks_addresses_pairs_and_ports() -> None:
    allow = ["10.0.0.0/8", "192.168.1.7", "127.0.0.1:9000", "[fd00::5]:9000", "Hooks.Internal.:9001", "fd01::/16"]
    reach = Reach.of(allow, [8443])
    allowed = [("10.1.2.3", 443), ("10.1.2.3", 8443), ("192.168.1.7", 80), ("127.0.0.1", 9000), ("fd00::5", 9000)]
    for address, port in [*allowed, ("fd01::1", 443), ("::ffff:10.0.0.1", 443), ("64:ff9b::a00:1", 443)]:
        reach.check(address, port, name="x")
    reach.check("172.16.0.1", 9001, name="hooks.internal")
    refused = [("10.1.2.3", 9000), ("192.168.1.8", 80), ("127.0.0.1", 9001), ("127.0.0.1", 443), ("fd00::5", 443)]
    for address, port in [*refused, ("172.16.0.1", 9001), ("1.1.1.1", 9000)]:
        with pytest.raises(OutOfReach):
            reach.check(address, port, name="x")


def test_network_that_holds_a_metadata_service_does_not_open_it() -> None:
    wide = Reach.of(["0.0.0.0/0", "::/0"])
    wide.check("169.254.1.1", 80, name="x")
    for address in ("169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "168.63.129.16"):
        with pytest.raises(OutOfReach):
            wide.check(address, 80, name="x")
    Reach.of(["169.254.169.254"]).check("169.254.169.254", 80, name="x")


@pytest.mark.parametrize(
    "text",
    ["", "example.com", "10.0.0.0/33", "host:", ":80", "host:0", "host:65536", "host:x", "http://a:80", "300.1:80"],
)
def test_what_cannot_be_allowed_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(duly.InvalidArgument, match="host:port"):
        Reach.of([text])
    with pytest.raises(duly.InvalidArgument):
        Reach.of([], [0])


def test_this_machines_own_address_is_out_of_reach_also_where_it_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    # The address by which this machine reaches others stands in for a public one.
    with socket.socket(V4, socket.SOCK_DGRAM) as towards:
        towards.connect(("192.0.2.1", 9))
        own = towards.getsockname()[0]
    monkeypatch.setattr("duly.broker.pushes.reach._SPECIAL_4", ())
    Reach().check("192.0.2.77", 443, name="x")
    with pytest.raises(OutOfReach):
        Reach().check(own, 443, name="x")
    Reach.of([own]).check(own, 443, name="x")


# With a listener inside, whose port is allowed: only its address keeps pushes from it


class Names:
    """A resolver that answers each time with the next of its answers, and counts."""

    def __init__(self, *answers: Found) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, name: str, port: int) -> Found:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


@pytest.fixture
def try_out(pushing_with: Callable[..., Pushing], receiver: Receiver) -> Callable[..., PushAnswer]:
    def trying(url: str, *, names: Names | None = None, allow: tuple[str, ...] = (), **to: Any) -> PushAnswer:
        lookups = None if names is None else Lookups(names)
        pushing = pushing_with(reach=Reach.of(allow, [receiver.port]), lookups=lookups)
        push = RunningPush("default", "p", "t", "queue", ToHttp(url.format(port=receiver.port), timeout=3, **to))
        return pushing.out.try_out(push)

    return trying


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "0177.0.0.1"),
        *("127.0.0.1.", "localhost", "localhost.", "LOCALHOST", "ip6-localhost", "0.0.0.0", "0", "127.99.1.2"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:ffff:127.0.0.1]"),
        *("[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[fe80::1%25lo]", "[::1%25lo]", "[fd00:ec2::254]"),
        *("169.254.169.254", "10.0.0.1", "①②⑦.⓪.⓪.①", "\uff11\uff12\uff17.0.0.1", "127。0。0。1", "%31%32%37.0.0.1"),
    ],
)
def test_no_spelling_of_an_address_reaches_inside(
    try_out: Callable[..., PushAnswer], receiver: Receiver, host: str
) -> None:
    answer = try_out(f"http://{host}:{{port}}/")
    assert answer.status is None
    assert answer.error
    assert receiver.connections == 0


def test_name_is_looked_up_once_and_that_address_is_connected_to(
    try_out: Callable[..., PushAnswer], receiver: Receiver
) -> None:
    # Nobody answers at the first, which is documentation's and allowed here; whoever looked again would get inside.
    names = Names([(V4, "192.0.2.1")], [(V4, "127.0.0.1")])
    answer = try_out("http://rebinding.example:{port}/", names=names, allow=("192.0.2.0/24",))
    assert (answer.status, names.asked, receiver.connections) == (None, 1, 0)


@pytest.mark.parametrize(
    "inside",
    [(V4, "127.0.0.1"), (V6, "::ffff:127.0.0.1"), (V6, "::1"), (V6, "fe80::1%lo"), (V4, "169.254.169.254")],
)
def test_name_with_one_address_inside_is_refused_as_a_whole(
    try_out: Callable[..., PushAnswer], receiver: Receiver, inside: tuple[int, str]
) -> None:
    names = Names([(V4, "192.0.2.1"), inside])
    answer = try_out("http://mixed.example:{port}/", names=names, allow=("192.0.2.0/24",))
    assert "may not connect" in answer.error
    assert "127.0.0.1" not in answer.error
    assert receiver.connections == 0


def test_redirect_inside_is_not_followed(try_out: Callable[..., PushAnswer], receiver: Receiver) -> None:
    for status in (301, 302, 303, 307, 308):
        receiver.next["/"] = [http(status, b"", f"location: {receiver.url('/inside')}")]
        answer = try_out("http://127.0.0.1:{port}/", allow=(f"127.0.0.1:{receiver.port}",))
        assert answer.status == status
    assert {got.path for got in receiver.requests} == {"/"}


def test_proxies_and_passwords_of_the_environment_are_not_used(
    try_out: Callable[..., PushAnswer], receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, receiver.url(""))
    (tmp_path / "netrc").write_text("default login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    names = Names([(V4, "192.0.2.1")])
    answer = try_out("http://outside.example/", names=names, allow=("192.0.2.0/24",))
    assert (answer.status, receiver.connections) == (None, 0)
    try_out("http://127.0.0.1:{port}/", allow=(f"127.0.0.1:{receiver.port}",))
    assert "authorization" not in receiver.requests[0].headers


@pytest.mark.parametrize("port", ["22", "8470", "0", "65536", "-80", "80a", "80@127.0.0.1"])
def test_other_ports_are_out_of_reach(try_out: Callable[..., PushAnswer], port: str) -> None:
    names = Names([(V4, "192.0.2.1")])
    try:
        answer = try_out(f"http://outside.example:{port}/", names=names, allow=("192.0.2.0/24",))
    except duly.InvalidArgument:
        return
    assert "may not connect" in answer.error


def test_user_in_a_url_is_refused() -> None:
    for url in ("http://a@127.0.0.1/", "http://example.com:80@127.0.0.1/", "http://:@example.com/"):
        with pytest.raises(duly.InvalidArgument, match="password"):
            ToHttp(url)


# Names that the operator allows, and TLS


def test_allowed_name_is_reached_with_its_name(try_out: Callable[..., PushAnswer], receiver: Receiver) -> None:
    names = Names([(V4, "127.0.0.1")])
    answer = try_out("http://hooks.internal:{port}/x", names=names, allow=(f"hooks.internal:{receiver.port}",))
    assert answer.status == 204
    assert receiver.requests[0].headers["host"] == f"hooks.internal:{receiver.port}"
    other = try_out("http://other.internal:{port}/x", names=names, allow=(f"hooks.internal:{receiver.port}",))
    assert other.status is None


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_development_certificates(str(tmp_path / "certs"), names=["hooks.example"])
    return tmp_path / "certs"


def test_certificate_is_verified_for_the_name_over_a_connection_to_the_judged_address(
    pushing_with: Callable[..., Pushing], certificates: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    named: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: named.append(name)
    receiver = Receiver(tls=context)
    try:
        lookups = Lookups(Names([(V4, "127.0.0.1")]))
        how = {"reach": Reach.of(["127.0.0.1"], [receiver.port]), "lookups": lookups}
        trusting = pushing_with(ca_file=str(certificates / "ca.pem"), **how)
        wary = pushing_with(**how)

        def ask(pushing: Pushing, host: str) -> PushAnswer:
            url = f"https://{host}:{receiver.port}/"
            return pushing.out.try_out(RunningPush("default", "p", "t", "queue", ToHttp(url, timeout=5)))

        assert ask(trusting, "hooks.example").status == 204
        assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"
        assert named == ["hooks.example"]
        assert "certificate is not accepted" in ask(trusting, "other.example").error
        assert "certificate is not accepted" in ask(wary, "hooks.example").error
        assert len(receiver.requests) == 1
    finally:
        receiver.close()


def test_file_of_authorities_that_cannot_be_read_is_said(pushing_with: Callable[..., Pushing], tmp_path: Path) -> None:
    with pytest.raises(duly.InvalidArgument, match="No such file"):
        pushing_with(ca_file=str(tmp_path / "none.pem"))


def test_refusal_stands_in_the_history(pushing_with: Callable[..., Pushing], receiver: Receiver) -> None:
    pushing = pushing_with(reach=Reach.of([], [receiver.port]))
    pushing.q.create_topic("hooks", kind="queue")
    pushing.q.publish("hooks", duly.Message(b"x", id="m"))
    pushing.start("hooks", ToHttp(receiver.url()))
    eventually(lambda: pushing.counts("hooks")[2] == 1)
    known = pushing.q.get("hooks", "m")
    assert known is not None
    [failure] = known.history
    assert "may not connect to 127.0.0.1" in failure.reason
    assert receiver.connections == 0
