"""Parts of a surface that are left out for their size: a level set, splats and clouds have specks that nobody meant.

Each would have a constant of its own, and the lowest eigenvalues would all be zero. The parts of a mesh are the user's.
"""

from __future__ import annotations

# A connected part that lies apart is a speck, and left out with a warning, if its area is less than this share of the
# area of the largest part. Chosen by trial on splats and networks: each speck that stays adds an eigenvalue zero.
MAX_SPECK_AREA_RATIO = 0.01


def left_out_for_size(count: int, share: float) -> str:
    """The sentence that says so of count parts with this share of the area."""
    parts, each = ("1 part", "it lies") if count == 1 else (f"{count} parts", "each lies")
    were, in_all, them = ("was", "", "it") if count == 1 else ("were", " in all", "them")
    return (
        f"{parts} of the surface, {share:.2%} of its area{in_all}, {were} left out: {each} apart and is smaller than a "
        f"hundredth of the largest part. Points on {them} read the nearest part that was kept."
    )
