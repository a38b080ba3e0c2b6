"""Equal weights are equal filters in every process, whatever escnn's caches hold and in any order of building."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import escnn
import numpy as np
import pytest
from escnn import gspaces
from escnn.group import SO3, CyclicGroup
from escnn.group.groups import so3group

from escnn_relaxed.on_escnn.solutions import canonical_embeddings, use_canonical_solutions

# Bases go through QR and products of matrices in float64.
ROUNDING = 1e-12


def endomorphisms(kind: str) -> np.ndarray:
    """Of an irrep of real, complex or quaternionic type, as escnn has them."""
    irreps = {"real": SO3(2).irrep(1), "complex": CyclicGroup(5).irrep(1)}
    if kind == "quaternionic":
        escnns = irreps["complex"].__class__.endomorphism_basis
        return escnns(type("Irrep", (), {"type": "H", "size": 4})())
    return irreps[kind].endomorphism_basis()


@pytest.mark.parametrize("kind", ["real", "complex", "quaternionic"])
def test_embeddings_depend_on_the_space_alone(kind: str) -> None:
    """Two bases of one space of embeddings, mixed by endomorphisms, have one canonical form in that space."""
    random = np.random.default_rng(0)
    commuting = endomorphisms(kind)
    size, copies = commuting.shape[-1], 3
    rows = size * copies + 2
    # Orthonormal copies of the irrep in a larger space.
    images = np.linalg.qr(random.normal(size=(rows, rows)))[0][:, : size * copies]
    embeddings = images.reshape(rows, copies, size).swapaxes(0, 1)
    mixing = random.normal(size=(copies, copies, len(commuting)))
    mixed = np.einsum("abe,bnc,ecd->and", mixing, embeddings, commuting)
    first, second = (canonical_embeddings(of, commuting) for of in (embeddings, mixed))
    assert np.abs(first - second).max() <= ROUNDING
    flat = first.swapaxes(0, 1).reshape(rows, -1)
    assert np.abs(flat.T @ flat - np.eye(size * copies)).max() <= ROUNDING
    assert np.linalg.matrix_rank(np.concatenate([flat, images], axis=1), tol=1e-9) == size * copies


def test_solvers_leave_numpys_generator_alone_and_are_replaced_once() -> None:
    gspace = gspaces.flipRot2dOnR2(7)
    before, solver = np.random.get_state()[1].copy(), so3group._clebsh_gordan_tensor_so3
    gspace.fibergroup._clebsh_gordan_coeff((1, 1), (1, 2), (1, 3))
    gspace.fibergroup.irrep(1, 1).restrict((None, 7))
    assert np.array_equal(before, np.random.get_state()[1])
    use_canonical_solutions()
    assert so3group._clebsh_gordan_tensor_so3 is solver


BUILD = """
import os, shutil, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
import escnn
from escnn import gspaces, nn
folder = sys.argv[1]
assert escnn.__file__.startswith(folder)

def build(seed, order):
    np.random.seed(int(seed))
    from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv
    plane, space = gspaces.flipRot2dOnR2(3), gspaces.rot3dOnR3()
    def dihedral():
        return nn.R2Conv, RelaxedR2Conv, nn.FieldType(plane, [plane.irrep(1, 1), plane.regular_repr])
    def rotations():
        return nn.R3Conv, RelaxedR3Conv, nn.FieldType(space, [space.irrep(0), space.irrep(1)])
    builds = {"dihedral": dihedral, "rotations": rotations}
    found = {}
    for name in sorted(builds, reverse=order == "reverse"):
        theirs, ours, fields = builds[name]()
        strict, relaxed = theirs(fields, fields, 3, initialize=False), ours(fields, fields, 3, relax=None)
        weights = torch.linspace(-1, 1, strict.weights.numel())
        for layer in (strict, relaxed):
            layer.weights.data = weights
        kernels = [layer.expand_parameters()[0].detach().double().numpy() for layer in (strict, relaxed)]
        assert np.abs(kernels[0] - kernels[1]).max() < 1e-6
        found[name] = kernels[1]
    np.savez(f"{folder}/{seed}.npz", **found)

# Importing torch and escnn takes seconds, and solves nothing yet.
for run in sys.argv[2:]:
    seed, order, cache = run.split()
    if cache == "cold":
        shutil.rmtree(f"{folder}/escnn/group/_cache", ignore_errors=True)
    process = os.fork()
    if not process:
        build(seed, order)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
"""


@pytest.mark.slow
def test_two_cold_caches_and_two_orders_of_building_give_one_filter(tmp_path: Path) -> None:
    """Kernels of equal weights, built by a copy of escnn whose caches on disk are its own."""
    ignored = shutil.ignore_patterns("_cache", "__pycache__")
    shutil.copytree(Path(escnn.__file__).parent, tmp_path / "escnn", ignore=ignored)
    package = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), package])}
    runs = "1 forward cold", "2 reverse cold", "3 forward warm"
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path), *runs], check=True, env=environment)
    first, *others = (dict(np.load(tmp_path / f"{run[0]}.npz")) for run in runs)
    for again in others:
        for name, kernel in first.items():
            assert np.linalg.norm(kernel) > 0.1
            assert np.abs(kernel - again[name]).max() <= 1e-6  # escnn samples in float32
