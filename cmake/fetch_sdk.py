"""Find the ExecuTorch C++ SDK, or fetch it: prints two lines, its folder and where it came from.

The SDK (headers and shared libraries) is inside the PyPI wheel of executorch. An installed copy of
exactly the wanted version is used if this interpreter has one; else the wheel is fetched with pip,
without its dependencies. Either way the bytes are checked: the wheel against the hashes below, an
installed library against the RECORD of its own wheel.

The libraries do not depend on Python, so one wheel a platform serves every Python version.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "1.5.1"
PYTHON = "3.11"
WHEEL_SHA256 = {
    "x86_64": "274c28c2fe2b76acb03f9fa381537425c40e0098dcf886baf6d97a1a55ffe300",
    "aarch64": "8ee02348a3ea80ddf770822911ebf78da616b73afce0fbaaa79f23311c88c66a",
}


def installed() -> Path | None:
    """The folder of an installed executorch of the right version whose libraries are intact."""
    try:
        distribution = importlib.metadata.distribution("executorch")
    except importlib.metadata.PackageNotFoundError:
        return None
    if distribution.version != VERSION:
        return None
    for file in distribution.files or []:
        if file.parts[:2] == ("executorch", "lib") and file.name.startswith("libexecutorch"):
            digest = hashlib.sha256(Path(str(file.locate())).read_bytes()).digest()
            if file.hash is None or file.hash.value != _record_hash(digest):
                sys.exit(f"{file} of the installed executorch {VERSION} differs from its RECORD")
    return Path(str(distribution.locate_file("executorch")))


def _record_hash(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def fetched(folder: Path) -> Path:
    """The folder of the unpacked wheel under `folder`, downloaded there if it is not yet."""
    machine = platform.machine()
    if machine not in WHEEL_SHA256:
        sys.exit(f"executorch {VERSION} has no SDK for {platform.system()} {machine}")
    root = folder / f"executorch-{VERSION}-{machine}"
    if (root / "complete").exists():
        return root / "executorch"
    folder.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirement.txt"
    requirement.write_text(f"executorch=={VERSION} --hash=sha256:{WHEEL_SHA256[machine]}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    command += [f"--platform=manylinux_2_28_{machine}", f"--dest={folder}", "-r", str(requirement)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (wheel,) = folder.glob(f"executorch-{VERSION}-*_{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("executorch/include/", "executorch/lib/", f"executorch-{VERSION}.dist-info/")
        archive.extractall(root, [n for n in archive.namelist() if n.startswith(wanted)])
    wheel.unlink()
    (root / "complete").touch()
    return root / "executorch"


def main() -> None:
    folder = installed()
    origin = f"installed executorch {VERSION}"
    if folder is None:
        folder = fetched(Path(sys.argv[1]))
        origin = f"executorch {VERSION} fetched from the package index, SHA-256 checked"
    print(folder)
    print(origin)


if __name__ == "__main__":
    main()
