"""What equal or unequal poses, and softness that helps or is not needed, mean together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..checks import check_mapping
from .poses import PoseReport
from .reports import Report, plain_table

# Whether poses are equal and whether softness helps → what follows, in words.
_VERDICTS = {
    (True, False): "strict is right",
    (True, True): "soft: the labels need it",
    (False, False): "strict costs nothing",
    (False, True): "soft is better on images like these; these data cannot say whether turned images keep their labels",
}


@dataclass(frozen=True)
class VerdictRow:
    """What follows for one subgroup.

    Attributes:
        subgroup: ``"rotation"`` or ``"reflection"``.
        poses_equal: whether images come in all its poses alike.
        softness_helps: whether a network that is soft in it is better on images like these.

    Example:
        >>> VerdictRow("rotation", poses_equal=True, softness_helps=True).text
        'soft: the labels need it'
    """

    subgroup: str
    poses_equal: bool
    softness_helps: bool

    @property
    def text(self) -> str:
        """The verdict in words."""
        return _VERDICTS[self.poses_equal, self.softness_helps]


@dataclass(frozen=True)
class SymmetryVerdict(Report):
    """A row for each subgroup; its text is a table.

    Attributes:
        rows: of the subgroups that both tests know.

    Example:
        >>> print(SymmetryVerdict((VerdictRow("rotation", False, False),)))
        subgroup  poses    softness    verdict
        rotation  unequal  not needed  strict costs nothing
    """

    rows: tuple[VerdictRow, ...]

    def __str__(self) -> str:
        lines = [
            [
                row.subgroup,
                "equal" if row.poses_equal else "unequal",
                "helps" if row.softness_helps else "not needed",
                row.text,
            ]
            for row in self.rows
        ]
        return plain_table(["subgroup", "poses", "softness", "verdict"], lines)


def symmetry_verdict(poses: PoseReport, helps: Mapping[str, bool]) -> SymmetryVerdict:
    """Return what equal or unequal poses, and softness that helps or is not needed, mean for each subgroup.

    A symmetry can be broken in two ways. The labels may need it: sixes and turned sixes are two classes. Or only the
    poses are unequal: digits that are upright in every image. A soft network may use the second and then fails on
    turned images. No data of one pose can tell the two apart, and the verdict says so.

    Args:
        poses: what :func:`pose_test` found.
        helps: subgroup → whether softness helps, as :func:`~escnn_relaxed.learning.which_softness_helps` finds.

    Raises:
        TypeError: for arguments of another type.
        ValueError: where no subgroup is in both.

    Example:
        >>> from escnn_relaxed.measure import PoseRow
        >>> poses = PoseReport((PoseRow("rotation", 0.98, 0.004, False),))
        >>> print(symmetry_verdict(poses, {"rotation": True}).rows[0].text)
        soft is better on images like these; these data cannot say whether turned images keep their labels
    """
    if not isinstance(poses, PoseReport):
        raise TypeError(f"poses must be what pose_test returned, got {type(poses).__name__}: {poses!r}")
    check_mapping("helps", helps, "what which_softness_helps(…).helps gave")
    rows = [VerdictRow(row.subgroup, row.equal, helps[row.subgroup]) for row in poses.rows if row.subgroup in helps]
    if not rows:
        raise ValueError(f"helps must have one of the subgroups {list(poses.equal)}, got {list(helps)}")
    return SymmetryVerdict(tuple(rows))
