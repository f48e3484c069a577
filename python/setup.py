"""Marks the wheel as one of a platform and of the stable ABI; the rest is in pyproject.toml.

The extension is built by CMake, not here, so setuptools does not see it by itself.
"""

from __future__ import annotations

from setuptools import Distribution, setup


class _BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=_BinaryDistribution,
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
