#!/usr/bin/env python3
"""Packs the Python package and the shared library into a wheel, and prints the wheel's path.

usage: build_wheel.py LIBRARY FOLDER

The wheel is for Linux on the processor that LIBRARY is for, and for any Python from 3.9. Times
within it are SOURCE_DATE_EPOCH, or the beginning of 1980, so that equal files make equal wheels.
"""

import base64
import hashlib
import os
import pathlib
import re
import struct
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# The number of a processor in the head of an ELF file.
MACHINES = {62: "x86_64", 183: "aarch64"}
# What the format of zip archives begins with.
EARLIEST = 315532800


def metadata(version):
    head = [
        "Metadata-Version: 2.1",
        "Name: amalgam-embed",
        f"Version: {version}",
        "Summary: A bounded cache in process memory, with expiry, eviction and batched reads",
        "License: Apache-2.0",
        "Home-page: https://github.com/amalgam-kv/amalgam",
        "Requires-Python: >=3.9",
        "Classifier: Operating System :: POSIX :: Linux",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(head) + "\n\n" + (HERE.parent / "README.md").read_text()


def main(library, folder):
    library = pathlib.Path(library).read_bytes()
    manifest = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"', manifest, re.MULTILINE)[1]
    machine = MACHINES[struct.unpack_from("<H", library, 18)[0]]
    tag = f"py3-none-linux_{machine}"
    info = f"amalgam_embed-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: amalgam\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {
        "amalgam_embed/__init__.py": (HERE / "src/amalgam_embed/__init__.py").read_bytes(),
        "amalgam_embed/libamalgam_embed.so": library,
        f"{info}/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{info}/METADATA": metadata(version).encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", EARLIEST)), EARLIEST)
    path = pathlib.Path(folder) / f"amalgam_embed-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
