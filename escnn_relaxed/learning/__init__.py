"""Ways to learn how soft layers are, and to decide whether they need it.

``LearnSoftness``, the evidence as a callback, and ``AnnealSoftness`` are in
:mod:`escnn_relaxed.learning.lightning_callbacks`, which needs Lightning.
"""

from .annealing import annealed_gate
from .evidence import SoftnessEvidence
from .frequency_parameters import frequency_penalty, parameter_groups, share_domain_frequency
from .hardening import HardeningReport, HardeningTrial
from .posterior import EvidenceRow, EvidenceTable
from .prior import GammaPrior, LearnedGroup, Prior
from .training_trials import TrainingTrial, TrainingTrials, which_softness_helps

__all__ = [
    "EvidenceRow",
    "EvidenceTable",
    "GammaPrior",
    "HardeningReport",
    "HardeningTrial",
    "LearnedGroup",
    "Prior",
    "SoftnessEvidence",
    "TrainingTrial",
    "TrainingTrials",
    "annealed_gate",
    "frequency_penalty",
    "parameter_groups",
    "share_domain_frequency",
    "which_softness_helps",
]
