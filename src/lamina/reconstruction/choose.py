"""What the surface of samples is made from is decided here, and nowhere else.

| method | the surface is |
|---|---|
| exact | the given one: meshes, implicit functions, maps and formulas know their closest points themselves |
| jets | polynomials fitted to the samples (`lamina.fits.fitting`) |
| fits | quadrics whose weights a trained network chooses, blended (`neural_cloud.py`) |
| triangles | triangles between the samples (`triangulated_cloud.py`) |

`reconstruct` takes the method that was asked for, or chooses one, and says which it used and why. Part of a surface
(`lamina.clip`) has the reconstruction of the whole surface: the whole is reconstructed first and then clipped.
`register` adds a method of your own (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch

from lamina.errors import InputError
from lamina.reconstruction.neural_cloud import NeuralCloud, wide_jets_are_better
from lamina.reconstruction.triangulated_cloud import MAX_AREA_ERROR, Joined, TriangulatedCloud, triangulated
from lamina.reconstruction.weights import shipped_fit_network
from lamina.surfaces.base import Surface
from lamina.surfaces.clipped import Clipped, clip
from lamina.surfaces.point_cloud import PointCloud
from lamina.surfaces.splats import Splats

RECONSTRUCTIONS = ("auto", "fits", "jets", "triangles")  # what Domain(reconstruction=...) takes
EXTENSIONS = ("closest-point", "jet", "neural", "attention")  # what Domain(extension=...) takes besides "auto"
# The method that each of these names of version 0.1 asks for.
METHOD_OF_EXTENSION = {"auto": "auto", "closest-point": "exact", "jet": "jets", "neural": "fits"}
# The name of version 0.1 for the method that was used. Triangles know their closest points, as any mesh does.
EXTENSION_OF_METHOD = {"exact": "closest-point", "jets": "jet", "fits": "neural", "triangles": "closest-point"}
METHOD_WORDS = {
    "exact": "the surface itself",
    "jets": "polynomials fitted to its samples",
    "fits": "robust fits",
    "triangles": "triangles between its samples",
}
# A cloud with fewer points than this has jets by default. Fits are possible from 256 points; chosen by trial.
MIN_POINTS_FOR_DEFAULT_FITS = 500
# A cloud with more points than this is joined by triangles only if asked for: Delaunay's algorithm runs on one core of
# the CPU and takes most of the time, seconds for each 100,000 points.
MAX_POINTS_FOR_DEFAULT_TRIANGLES = 100_000
REGISTERED: dict[str, Callable[[PointCloud], Surface]] = {}  # methods of users: what makes the surface of a cloud


@dataclass(frozen=True)
class Reconstruction:
    """The surface that is cut, what it was made from, and why."""

    surface: Surface
    method: str
    reason: str  # one sentence
    area_error: float | None = None  # estimated relative error of the area; None where there is no estimate

    def __str__(self) -> str:
        return f"{METHOD_WORDS.get(self.method, self.method)} ({self.reason})"


def reconstruct(surface: Surface, method: str = "auto") -> Reconstruction:
    """The surface that is cut: the given one where it knows its closest points, otherwise one made from its samples.

    surface: any surface. With a method other than "auto" and "exact", one without samples of its own stands for its
    points and normals.
    method: "auto", "fits", "jets" or "triangles"; "exact": the surface itself; "best": triangles, or fits or jets where
    these are better. "auto" is "best" for clouds of 500 points or more, "jets" for smaller ones and for Gaussian
    splats, and "exact" for all other surfaces. "fits" uses jets where they are better, but never triangles.
    Raises InputError where the method is unknown, or where it finds no surface.
    """
    if method not in (*_known(), "exact", "best"):
        raise InputError(f"Unknown reconstruction {method!r}; known: {', '.join(_known())}.")
    return _reconstruct(surface, method)


@singledispatch
def _reconstruct(surface: Surface, method: str) -> Reconstruction:
    """Of surfaces that know their closest points; the functions below are for those that do not, by their types."""
    if method in ("auto", "exact"):
        return Reconstruction(surface, "exact", "it knows its closest points")
    return _reconstruct(PointCloud(surface.positions, surface.normals, name=surface.name), method)


@_reconstruct.register
def _(surface: Clipped, method: str) -> Reconstruction:
    whole = _reconstruct(surface.base, method)
    if whole.surface is surface.base:
        return replace(whole, surface=surface)
    return replace(whole, surface=_clipped(whole.surface, surface))


@_reconstruct.register
def _(surface: PointCloud, method: str) -> Reconstruction:
    if method == "exact":
        raise InputError(
            'A point cloud has no closest points of its own; use reconstruction="auto", "fits", "jets" or "triangles".'
        )
    if method == "auto" and len(surface.points) < MIN_POINTS_FOR_DEFAULT_FITS:
        reason = f"the cloud has fewer than {MIN_POINTS_FOR_DEFAULT_FITS} points"
        return Reconstruction(surface, "jets", reason)
    return _from_samples(surface, "best" if method == "auto" else method)


@_reconstruct.register
def _(surface: Splats, method: str) -> Reconstruction:
    if method == "auto":
        return Reconstruction(surface, "jets", "Gaussians have footprints, over which jets are fitted")
    if method in ("exact", "jets", *REGISTERED):
        return _reconstruct.dispatch(PointCloud)(surface, method)
    fitted = (surface.live_fit if surface.tracked else surface.fit).cloud
    return _from_samples(PointCloud(fitted.points, fitted.normals, name=surface.name), method)


@_reconstruct.register
def _(surface: NeuralCloud, method: str) -> Reconstruction:
    if method in ("triangles", "exact", *REGISTERED):
        return _reconstruct.dispatch(PointCloud)(surface, method)
    return Reconstruction(surface, "fits", "the cloud was given with its fits")


@_reconstruct.register
def _(surface: TriangulatedCloud, method: str) -> Reconstruction:
    if method in ("fits", "jets", *REGISTERED):
        return _reconstruct.dispatch(Surface)(surface, method)
    return Reconstruction(surface, "triangles", "the cloud was given with its triangles")


def register(method: str, make: Callable[[PointCloud], Surface]) -> None:
    """Let `Domain(cloud, reconstruction=method)` cut the surface that make(cloud) returns.

    A second function for the same method replaces the first. Raises InputError where lamina has a method of that name.
    """
    if method in (*RECONSTRUCTIONS, *METHOD_WORDS, *METHOD_OF_EXTENSION.values()):
        raise InputError(f"lamina has a reconstruction {method!r} already; register yours by another name.")
    REGISTERED[method] = make


def _known() -> tuple[str, ...]:
    return (*RECONSTRUCTIONS, *REGISTERED)


def reconstruct_as_asked(surface: Surface, extension: str, reconstruction: str) -> tuple[Reconstruction, str]:
    """The reconstruction that the options of `lamina.Domain` ask for, and the name of version 0.1 for what was used.

    Raises InputError where an option is unknown, or where both are given.
    """
    if extension not in ("auto", *EXTENSIONS):
        raise InputError(f"Unknown extension {extension!r}; known: auto, {', '.join(EXTENSIONS)}.")
    if reconstruction not in _known():
        raise InputError(f"Unknown reconstruction {reconstruction!r}; known: {', '.join(_known())}.")
    if extension != "auto" and reconstruction != "auto":
        raise InputError(
            f'Give reconstruction or extension, not both; got reconstruction="{reconstruction}" and '
            f'extension="{extension}".'
        )
    if extension == "attention":
        method = "exact" if surface.exact else "jets"
        return Reconstruction(surface, method, "the network of the paper sees samples only"), extension
    method = reconstruction if extension == "auto" else METHOD_OF_EXTENSION[extension]
    found = reconstruct(surface, method)
    return found, EXTENSION_OF_METHOD.get(found.method, "closest-point")


def has_the_points_of(surface: Surface, given: Surface) -> bool:
    """Whether a reconstructed surface has the points of the given one.

    It can then take its place: it knows the normals, components and areas of these points better.
    """
    while isinstance(surface, Clipped) and isinstance(given, Clipped) and surface.faces is None:
        surface, given = surface.base, given.base
    return surface.points is given.points


def _clipped(whole: Surface, part: Clipped) -> Surface:
    """A reconstruction of a whole surface, clipped as the part was."""
    clipped = clip(whole, part.function)
    clipped.notes, clipped.facts = list(whole.notes), dict(whole.facts)
    return clipped


def _from_samples(cloud: PointCloud, method: str) -> Reconstruction:
    """The surface of a cloud by any method but "auto" and "exact"."""
    if method in REGISTERED:
        return Reconstruction(REGISTERED[method](cloud), method, "it was asked for")
    if method == "jets":
        return Reconstruction(cloud, "jets", "it was asked for")
    few = len(cloud.points) <= MAX_POINTS_FOR_DEFAULT_TRIANGLES
    joined = triangulated(cloud) if method == "triangles" or (method == "best" and few) else None
    if method == "triangles" and joined is None:
        raise InputError(
            f"{cloud.name}: no triangles join its {len(cloud.points)} points, because the points lie in one plane; use "
            'reconstruction="fits" or "jets".'
        )
    if joined is not None and (method == "triangles" or not joined.jets_are_better):
        reason = "it was asked for" if method == "triangles" else joined.reason
        return Reconstruction(joined.mesh, "triangles", reason, joined.area_error)
    fits = NeuralCloud(cloud, shipped_fit_network())
    if joined is not None and _contradicted(fits, joined):
        reason = "fits leave holes between samples that are dense here and sparse there"
        return Reconstruction(joined.mesh, "triangles", reason, joined.area_error)
    if wide_jets_are_better(cloud, fits):
        return Reconstruction(cloud, "jets", "the samples are noise on a smooth surface, which wide jets follow better")
    if method == "fits":
        return Reconstruction(fits, "fits", "it was asked for")
    noisy = "the samples are noisy" if fits.noisy else "the samples are dense enough for fits"
    return Reconstruction(fits, "fits", noisy)


def _contradicted(fits: NeuralCloud, joined: Joined) -> bool:
    """Whether fits end where triangles do not, or have another area."""
    change = abs(float(fits.areas.sum()) / float(joined.mesh.areas.sum()) - 1)
    return (joined.closed and fits.open) or change > MAX_AREA_ERROR
