"""cpu_torch.py SITE_PACKAGES [EXTENSION.so ...]: imports a CUDA torch without CUDA.

PyPI's torch is linked against the libraries of the nvidia packages, several GB
that a CPU machine never calls. This compiles a stub for each of them into
torch/lib (gcc and readelf needed), exporting just the symbols that torch and the
given extensions ask for. The stubs report "no device", so
torch.cuda.is_available() is False. Safe to repeat.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

STUB_MARKER = "cpu_torch_stub_marker"
STUB_SIZE_LIMIT = 2_000_000
CUDA_ERROR_NO_DEVICE = 100

# Libraries that the system or torch itself provides.
PROVIDED = re.compile(
    r"^((libpthread|libm|libdl|libc|librt|libgcc_s|libstdc\+\+|libutil|libgomp)\.so"
    r"|ld-linux|libtorch|libc10|libshm|libcaffe2)"
)

# Undefined symbols without a version do not say where they come from; their names do.
SYMBOLS_BY_LIBRARY = {
    "libcublas": r"^cublas(?!Lt)",
    "libcublasLt": r"^cublasLt",
    "libcuda": r"^cu[A-Z]",
    "libcudart": r"^(__)?cuda",
    "libcudnn": r"^cudnn",
    "libcufft": r"^cufft",
    "libcufile": r"^cuFile",
    "libcupti": r"^cupti",
    "libcurand": r"^curand",
    "libcusolver": r"^cusolver",
    "libcusparse": r"^cusparse(?!Lt)",
    "libcusparseLt": r"^cusparseLt",
    "libnccl": r"^p?nccl",
    "libnvrtc": r"^nvrtc",
    "libnvshmem_host": r"^(nvshmem|_Z.*nvshmem)",
}


class SymbolNeeds:
    """What a set of shared objects needs from libraries that are not there."""

    def __init__(self, present: set[str]) -> None:
        self.present = present
        self.libraries: set[str] = set()
        # library -> version -> names; the dynamic linker insists on the version.
        self.versioned: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.unversioned: set[str] = set()
        self.defined: set[str] = set()

    def add(self, shared_object: pathlib.Path) -> None:
        for library in re.findall(r"\(NEEDED\).*\[(.+?)\]", _readelf("-dW", shared_object)):
            if self._is_missing(library):
                self.libraries.add(library)
        library_of_version = _library_of_version(shared_object)
        for line in _readelf("--dyn-syms", "-W", shared_object).splitlines():
            columns = line.split()
            if len(columns) < 8 or not columns[0].endswith(":"):
                continue
            _, _, _, _, binding, _, section, symbol = columns[:8]
            name, _, version = symbol.partition("@")
            version = version.lstrip("@")
            if section != "UND":
                self.defined.add(name)
            elif binding != "WEAK":
                self._add_symbol(name, version, library_of_version.get(version))

    def _add_symbol(self, name: str, version: str, library: str | None) -> None:
        if not version:
            self.unversioned.add(name)
        elif library and self._is_missing(library):
            self.libraries.add(library)
            self.versioned[library][version].add(name)

    def symbols(self, library: str) -> set[str]:
        names = {name for group in self.versioned[library].values() for name in group}
        pattern = SYMBOLS_BY_LIBRARY.get(library.split(".so")[0])
        if pattern:
            names |= {name for name in self.unversioned - self.defined if re.match(pattern, name)}
        return names

    def _is_missing(self, library: str) -> bool:
        return library not in self.present and not PROVIDED.match(library)


def _readelf(*arguments) -> str:
    command = ["readelf", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _library_of_version(shared_object: pathlib.Path) -> dict[str, str]:
    """The library that each symbol version of this object belongs to."""
    owner = {}
    library = None
    for line in _readelf("-VW", shared_object).splitlines():
        if found := re.search(r"File: (\S+)", line):
            library = found.group(1)
        if library and (found := re.search(r"Name: (\S+)", line)):
            owner[found.group(1)] = library
    return owner


def stub_function(name: str) -> str:
    """C source of one exported function.

    Static initialisers of torch register their kernels when the library is loaded:
    those calls must succeed. Every other call gets "no device".
    """
    if name.startswith("__cudaRegisterFatBinary") and not name.endswith("End"):
        return f"void *{name}(void) {{ static void *handle[64]; return handle; }}\n"
    if name.startswith(("__cudaRegister", "__cudaUnregister")):
        return f"int {name}(void) {{ return 0; }}\n"
    if name in ("cudaGetLastError", "cudaPeekAtLastError"):
        return f"int {name}(void) {{ return 0; }}\n"
    if name in ("cudaGetErrorString", "cudaGetErrorName"):
        return f'const char *{name}(int error) {{ return "stub: no CUDA"; }}\n'
    if name == "cudaGetDeviceCount":
        body = f"*count = 0; return {CUDA_ERROR_NO_DEVICE};"
        return f"int {name}(int *count) {{ {body} }}\n"
    return f"int {name}(void) {{ return {CUDA_ERROR_NO_DEVICE}; }}\n"


def version_script(versions: dict[str, set[str]]) -> str:
    nodes = []
    for version, names in sorted(versions.items()):
        exported = " ".join(f"{name};" for name in sorted(names))
        nodes.append(f"{version} {{ global: {exported} }};\n")
    return "".join(nodes)


def build_stub(
    library: str,
    names: set[str],
    versions: dict[str, set[str]],
    directory: pathlib.Path,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / "stub.c"
        functions = "".join(stub_function(name) for name in sorted(names))
        source.write_text(functions + f'const char {STUB_MARKER}[] = "{STUB_MARKER}";\n')
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-w",
            "-fno-builtin",
            f"-Wl,-soname,{library}",
        ]
        if versions:
            script = pathlib.Path(scratch) / "versions.map"
            script.write_text(version_script(versions))
            command.append(f"-Wl,--version-script={script}")
        command += ["-o", str(directory / library), str(source)]
        subprocess.run(command, check=True)


def remove_stubs(directory: pathlib.Path) -> None:
    for path in directory.glob("lib*.so.*"):
        small = path.stat().st_size < STUB_SIZE_LIMIT
        if small and STUB_MARKER.encode() in path.read_bytes():
            path.unlink()


def mark_as_cpu(site_packages: pathlib.Path) -> None:
    """Drops the nvidia packages from torch's metadata, so that pip never fetches them."""
    metadata = next(site_packages.glob("torch-*.dist-info/METADATA"))
    text = metadata.read_text()
    if re.search(r"^Version: .*\+cpu$", text, flags=re.MULTILINE):
        return
    text = re.sub(r"^Requires-Dist: (cuda|nvidia|triton).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^Version: ([0-9.]+)$", r"Version: \1+cpu", text, count=1, flags=re.MULTILINE)
    metadata.write_text(text)


def main(site_packages: pathlib.Path, extensions: list[pathlib.Path]) -> None:
    directory = site_packages / "torch" / "lib"
    remove_stubs(directory)
    torch_libraries = sorted(directory.glob("*.so*"))
    needs = SymbolNeeds({path.name for path in torch_libraries})
    for shared_object in torch_libraries + extensions:
        needs.add(shared_object)
    for library in sorted(needs.libraries):
        names = needs.symbols(library)
        build_stub(library, names, needs.versioned[library], directory)
        print(f"{library}: {len(names)} symbols")
    mark_as_cpu(site_packages)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: cpu_torch.py SITE_PACKAGES [EXTENSION.so ...]")
    main(pathlib.Path(sys.argv[1]), [pathlib.Path(argument) for argument in sys.argv[2:]])
