"""Certificates and keys of a federation on one machine, made anew for every start."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

DAYS = 30
"""A certificate is valid for so long."""

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"


def write_keys(folder: Path, clients: int) -> None:
    """Write a certificate authority, a server's certificate for this machine, clients' keys.

    Clients' keys are ``client0`` (private) and ``client0.pub``, and so on; private ones can be
    read by their owner alone. The authority's own key is not kept.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, own = _key(), _key()
    name = _name("fedre-privacy loopback authority")
    ca = _certificate(name, authority, name, authority, is_authority=True)
    server = _certificate(_name("localhost"), own, name, authority, is_authority=False)
    (folder / AUTHORITY).write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(server.public_bytes(Encoding.PEM))
    _write_private(folder / KEY, own, PrivateFormat.PKCS8)
    for k in range(clients):
        key = _key()
        _write_private(folder / f"client{k}", key, PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"client{k}.pub").write_bytes(public)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        here = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        made = made.add_extension(x509.SubjectAlternativeName(here), critical=False)
    return made.sign(issuer_key, hashes.SHA256())
