"""Why a broker could not be reached, where TLS is the reason: gRPC says little, so it is tried once more by hand."""

from __future__ import annotations

import socket
import ssl

from ..errors import Error, InvalidArgument, Unavailable
from .addresses import BROKER_SCHEME, TLS_SCHEME
from .tls import Tls

_CONNECT_S = 0.5
_SHAKE_S = 1.0
# With TLS 1.3 a server tells of a certificate that it misses only after the handshake.
_AFTERWARDS_S = 0.3
# What Python's TLS says of an answer that is not TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})


def why_not(address: str, tls: Tls | None, patience_s: float) -> Error | None:
    """What is wrong between this client and whoever listens at Flight's address; None when it is not TLS.

    It is tried for so long at most, or about that.
    """
    host, _, port = address.partition("://")[2].rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), timeout=min(_CONNECT_S, patience_s)) as line:
            line.settimeout(min(_SHAKE_S, patience_s))
            return _tried_plain(line, host, port) if tls is None else _tried(line, host, port, tls)
    except OSError:
        return None


def _tried_plain(line: socket.socket, host: str, port: str) -> Error | None:
    """Whether TLS is spoken there, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_socket(line, server_hostname=host).close()
    except ssl.SSLError as error:
        if error.reason in _NO_TLS or error.reason is None:
            return None
    return InvalidArgument(f"{host}:{port} speaks TLS. Connect to {TLS_SCHEME}{_shown(host)}:{port}.")


def _tried(line: socket.socket, host: str, port: str, tls: Tls) -> Error | None:
    context = tls.context()
    context.set_alpn_protocols(["h2"])
    where = f"{_shown(host)}:{port}"
    try:
        with context.wrap_socket(line, server_hostname=host) as shaken:
            if shaken.selected_alpn_protocol() != "h2":
                return InvalidArgument(f"{where} is not Flight's port; it may be HTTP's. Give the other one.")
            shaken.settimeout(_AFTERWARDS_S)
            # Flight's servers hang up without a word.
            return _unwanted(where) if _hangs_up(shaken) else None
    except ssl.SSLCertVerificationError as error:
        return Unavailable(
            f"The certificate of {where} is not trusted: {_verdict(error)}. Nothing was sent. Name the CA that signed "
            "it (tls=duly.Tls(ca=…), DULY_TLS_CA, or ca in a profile), and connect by a name that the certificate has."
        )
    except ssl.SSLError as error:
        return _refused(error, where)


def _refused(error: ssl.SSLError, where: str) -> Error | None:
    if error.reason in _NO_TLS:
        return InvalidArgument(f"{where} does not speak TLS. If it is to be reached without: {BROKER_SCHEME}{where}.")
    if error.reason is None or "ALERT" not in error.reason:
        return None
    return _unwanted(where)


def _hangs_up(line: ssl.SSLSocket) -> bool:
    """Whether the server ends the connection at once."""
    try:
        return not line.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def _unwanted(where: str) -> Error:
    return Unavailable(
        f"{where} asks for a client certificate that it trusts. Nothing was done. Give one with its key: "
        "tls=duly.Tls(cert=…, key=…), DULY_TLS_CERT and DULY_TLS_KEY, or cert and key in a profile."
    )


def _verdict(error: ssl.SSLCertVerificationError) -> str:
    return error.verify_message.rstrip(".")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
