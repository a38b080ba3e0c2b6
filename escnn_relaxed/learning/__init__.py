"""Ways to learn how soft layers are, and to decide whether they need it.

``LearnSoftness``, the evidence as a callback, and ``AnnealSoftness`` are in
:mod:`escnn_relaxed.learning.lightning_callbacks`, which needs Lightning.
"""

# ``as`` re-exports names listed at the top level and result classes.
from .annealing import annealed_gate
from .evidence import SoftnessEvidence as SoftnessEvidence
from .frequency_parameters import frequency_penalty, share_domain_frequency
from .frequency_parameters import parameter_groups as parameter_groups
from .hardening import HardeningReport as HardeningReport
from .hardening import HardeningTrial as HardeningTrial
from .posterior import EvidenceRow as EvidenceRow
from .posterior import EvidenceTable as EvidenceTable
from .prior import GammaPrior, Prior
from .prior import LearnedGroup as LearnedGroup
from .training_trials import TrainingTrial as TrainingTrial
from .training_trials import TrainingTrials as TrainingTrials
from .training_trials import which_softness_helps as which_softness_helps

__all__ = ["GammaPrior", "Prior", "annealed_gate", "frequency_penalty", "share_domain_frequency"]
