"""Ways to learn how soft layers are: the evidence of the data, and learned ω′.

The same as callbacks are in :mod:`escnn_relaxed.learning.lightning_callbacks`, which needs Lightning.

Example:
    >>> import torch
    >>> from escnn import gspaces, nn
    >>> from escnn_relaxed import RelaxedR2Conv
    >>> gspace = gspaces.rot2dOnR2(4)
    >>> fields = nn.FieldType(gspace, [gspace.regular_repr])
    >>> layer = RelaxedR2Conv(fields, fields, 3, learn_relaxation=True)
    >>> optimiser = torch.optim.Adam(parameter_groups(layer, frequency_rate=1e-2), lr=1e-3)
    >>> (0.1 * frequency_penalty(layer)).backward()
    >>> optimiser.step()
"""

from .evidence import SoftnessEvidence
from .frequency_parameters import frequency_penalty, parameter_groups, share_domain_frequency
from .hardening import HardeningReport, HardeningTrial
from .posterior import EvidenceRow, EvidenceTable
from .training_trials import TrainingTrial, TrainingTrials, which_softness_helps

__all__ = [
    "EvidenceRow",
    "EvidenceTable",
    "HardeningReport",
    "HardeningTrial",
    "SoftnessEvidence",
    "TrainingTrial",
    "TrainingTrials",
    "frequency_penalty",
    "parameter_groups",
    "share_domain_frequency",
    "which_softness_helps",
]
