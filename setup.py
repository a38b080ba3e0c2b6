"""Metadata of the package; pyproject.toml has the tools' settings, constraints.txt the tested versions."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_version() -> str:
    """Read the version from its one source, without importing the package and so torch."""
    text = (ROOT / "escnn_relaxed" / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError("escnn_relaxed/_version.py holds no line of the form __version__ = '...'")
    return match.group(1)


PAPER = "https://arxiv.org/abs/2204.07178"


def index_description() -> str:
    """README.md as a package index can show it: pictures and links that lead into the repository would be dead there.

    Pictures are left out. Links become their text, which names the file, or what it is about.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)\s]*\)\n\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)\s]*\)", r"\1", text)


ONNX = ["onnx", "onnxruntime", "onnxscript"]

EXTRAS = {
    "lightning": ["lightning>=2.5"],
    "plots": ["matplotlib"],
    "points": ["torch_geometric"],  # of escnn's convolutions of clouds
    "test": ["pytest>=8", "pytest-xdist", "hypothesis", "scikit-learn"],
    "examples": ["scikit-learn", "matplotlib", "rich"],
    "sweep": ["optuna>=4", "scikit-learn", "matplotlib"],
    "smoke": ["phiflow>=3.4", "matplotlib", "rich"],
    "docs": [
        "sphinx>=8",
        "myst-nb>=1.3",
        "jupytext",
        "pydata-sphinx-theme",
        "sphinx-copybutton",
        "sphinx-design",
        "scikit-learn",
        "matplotlib",
        *ONNX,
        "lightning>=2.5",
        "phiflow>=3.4",
    ],
    "package": ["build", "twine"],
    "export": ONNX,
    "lint": ["ruff==0.17.5", "mypy==2.4.1"],
}

setup(
    name="escnn_relaxed",
    version=read_version(),
    description="Convolutions for escnn whose equivariance is strict, soft, or learned, layer by layer",
    long_description=index_description(),
    long_description_content_type="text/markdown",
    author="The escnn_relaxed authors",
    url=PAPER,  # until the repository has an address
    project_urls={"Paper": PAPER},
    license_expression="BSD-3-Clause",
    license_files=["LICENSE"],
    keywords=["equivariance", "steerable convolution", "escnn", "relaxed equivariance", "PyTorch"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["escnn_relaxed", "escnn_relaxed.*"]),
    package_data={"escnn_relaxed": ["py.typed"]},
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.6",  # torch.compiler.set_stance, with which errors are measured; is_compiling is of 2.3
        "escnn>=1.0.11",
        "lie_learn",  # of escnn; where it has no build, compat/ takes its place
        "einops",
        "typing_extensions",
        "numpy",
        "scipy",
    ],
    extras_require=EXTRAS,
)
