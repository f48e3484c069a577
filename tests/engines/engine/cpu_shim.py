"""Lets TokenSpeed 0.1.1's Python import and serve on a machine without a GPU.

The kernel packages become empty stand-ins. Only `tokenspeed_kernel.platform` is the real file, which the
installation takes from the wheel; it is told that it runs on one small device. TokenSpeed's launcher gets
the scheduler process of fake_scheduler.py, whoever starts it. A .pth file imports this, so that spawned
processes have it too.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import pathlib
import sys
import types

KERNEL_PACKAGES = {
    "cutlass",
    "deep_ep",
    "deep_gemm",
    "flashinfer",
    "mooncake",
    "tokenspeed_kernel",
    "tokenspeed_kernel_amd",
    "tokenspeed_mla",
    "tokenspeed_triton",
    "torch_memory_saver",
}
LAUNCHER = "tokenspeed.runtime.entrypoints.engine"
PLATFORM_SOURCE = pathlib.Path(sys.prefix) / "tokenspeed_kernel_platform.py"


class _AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Anything(metaclass=_AnyClass):
    """Serves as class, decorator, context manager or value, all that imports need."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        used_as_decorator = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if used_as_decorator else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())

    def __getitem__(self, index):
        return Anything()

    def __class_getitem__(cls, item):
        return cls

    def __mro_entries__(self, bases):
        return (Anything,)

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return False


class KernelModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        asks_for_a_feature = name.startswith(("has_", "is_", "HAS_"))
        return False if asks_for_a_feature else Anything()


class KernelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] not in KERNEL_PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = KernelModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        if module.__name__ == "tokenspeed_kernel.platform":
            _load_platform(module)


def _load_platform(module):
    """Runs the real source, then answers its one question, which device is this.

    The frontend asks for an architecture version; 9.0 is one that every path knows.
    """
    source = importlib.machinery.SourceFileLoader(module.__name__, str(PLATFORM_SOURCE))
    source.exec_module(module)
    device = module.PlatformInfo(
        vendor="cpu",
        arch_version=module.ArchVersion(9, 0),
        device_name="cpu",
        device_count=1,
        total_memory=1 << 34,
        memory_bandwidth=1.0,
        sm_count=1,
        max_threads_per_sm=1,
        max_shared_memory_per_sm=1,
    )
    module._detect_platform = lambda: device
    module.current_platform = lambda: device


class LauncherFinder(importlib.abc.MetaPathFinder):
    """Puts our scheduler process into TokenSpeed's launcher as soon as that is imported."""

    def find_spec(self, name, path, target=None):
        if name != LAUNCHER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_install(module):
                execute(module)
                import fake_scheduler

                module.run_event_loop = fake_scheduler.run_event_loop

            spec.loader.exec_module = execute_and_install
        return spec


sys.meta_path[:0] = [KernelFinder(), LauncherFinder()]
