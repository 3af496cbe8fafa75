"""Kernels for GPUs give what the torch code beside them gives, which runs on the CPU here."""

import pytest
import torch

from lamina.device import by_kernel
from lamina.fits.blend import Blend
from lamina.fits.jets import Jets, fit_and_predict, fit_jets, predict
from lamina.fits.project import project
from lamina.fits.rims import _empty_discs
from lamina.geometry.triangles import unit
from lamina.reconstruction.fit_network import Neighbourhoods
from lamina.reconstruction.weights import shipped_fit_network
from lamina.search.bins import nearest_by_bins
from lamina.search.neighbours import k_nearest

pytestmark = pytest.mark.gpu
WAYS = ((2, 12, False), (4, 32, False), (6, 56, False), (6, 130, False), (6, 12, False), (2, 12, True), (6, 24, True))


@pytest.fixture(autouse=True)
def kernels_run():
    """Otherwise torch would be compared with torch."""
    assert by_kernel(torch.zeros(1, device="cuda"))


def bumpy_box(count: int = 3000, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples (n, 3) of a box with bumps, and normals of which some look anywhere."""
    g = torch.Generator().manual_seed(3)
    points = 2 * torch.rand(count, 3, generator=g, dtype=torch.float64) - 1
    rows, axis = torch.arange(count), torch.randint(3, (count,), generator=g)
    normals = torch.zeros_like(points)
    normals[rows, axis] = points[rows, axis].sign()
    points[rows, axis] = points[rows, axis].sign()
    points += 0.02 * torch.sin(3 * points.roll(1, 1))
    normals[::9] = unit(torch.randn(normals[::9].shape, generator=g, dtype=torch.float64))
    return points.to(dtype), normals.to(dtype)


def on_gpu(jets: Jets) -> Jets:
    return jets.to("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 2, 17, 64, 200])
def test_nearest_points(k, dtype):
    points, _ = bumpy_box(dtype=dtype)
    x = torch.cat([points[:500], points[:500] * 0.3, torch.tensor([[50.0, 0.0, 0.0]], dtype=dtype)])
    index, distance = k_nearest(points, k, x)
    found, away = nearest_by_bins(points.cuda(), x.cuda(), k)
    assert torch.allclose(away.cpu(), distance, rtol=1e-6 if dtype == torch.float32 else 1e-14)
    same = (points[found.cpu()] - x[:, None]).norm(dim=2)
    assert torch.allclose(same, distance, rtol=1e-5 if dtype == torch.float32 else 1e-13)
    assert (found.cpu() != index).double().mean() < 1e-3  # of equal distance


def test_very_many_points_at_one_distance_are_told_apart():
    points = torch.cat([torch.zeros(300, 3), torch.ones(50, 3)]).double().cuda()
    index, distance = nearest_by_bins(points, points, 310)
    assert all(len(set(row)) == 310 for row in index.tolist())
    assert (distance[:, :50] == 0).all()
    index, distance = nearest_by_bins(points, points[:3], 20)
    assert all(len(set(row)) == 20 for row in index.tolist())
    assert (distance == 0).all()


@pytest.mark.parametrize(("degree", "k", "slopes"), WAYS)
def test_fits_of_jets(degree, k, slopes):
    points, normals = bumpy_box()
    near = k_nearest(points, k)[0]
    expected, height = fit_and_predict(points, normals, near, degree, slopes=slopes)
    args = points.cuda(), normals.cuda(), near.cuda(), degree
    found, over = fit_and_predict(*args, slopes=slopes)
    alone = fit_jets(*args, slopes=slopes)
    raw, scale = predict(*args, slopes)
    # A system that only just determines a jet, or does not, may be seen either way: it is if neighbours are permuted.
    close = (found.coefficients.cpu() - expected.coefficients).abs().amax(1) < 1e-4
    assert close.double().mean() > 0.998
    for name in ("frames", "scale", "reach", "residual"):
        assert torch.allclose(getattr(found, name).cpu()[close], getattr(expected, name)[close], atol=1e-7)
        assert torch.equal(getattr(found, name), getattr(alone, name))
    assert torch.equal(found.coefficients, alone.coefficients)
    assert torch.equal(raw, torch.where(over == torch.inf, 0, over))
    assert torch.equal(scale, found.scale)
    left = (over.cpu() == height) | ((over.cpu() - height).abs() < 1e-6)
    assert left.double().mean() > 0.998
    if k > 12:
        assert (found.coefficients.cpu() - expected.coefficients).abs().median() < 1e-13


@pytest.mark.parametrize("degree", [2, 4, 6])
def test_closest_points_on_jets(degree):
    points, normals = bumpy_box()
    jets = fit_jets(points, normals, k_nearest(points, 40)[0], degree)
    index = torch.arange(len(points))
    x = points + 0.03 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0), dtype=points.dtype)
    feet, looks = project(jets, x, index)
    found, there = project(on_gpu(jets), x.cuda(), index.cuda())
    close = (found.cpu() - feet).norm(dim=1) < 1e-9
    assert close.double().mean() > 0.995  # as far from two places
    assert torch.allclose((x - found.cpu()).norm(dim=1), (x - feet).norm(dim=1), atol=1e-3)
    assert torch.allclose(there.cpu()[close], looks[close], atol=1e-7)


@pytest.mark.parametrize("sharp", [True, False])
@pytest.mark.parametrize(("degree", "among"), [(2, 16), (6, 16), (4, 20)])
def test_blends_of_jets(degree, among, sharp):
    points, normals = bumpy_box()
    near = k_nearest(points, 40)[0]
    jets = fit_jets(points, normals, near, degree)
    blend = Blend(points, normals, near[:, :among], jets, 3.0 if sharp else 16.0, sharp)
    x = points + 0.02 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0), dtype=points.dtype)
    index = k_nearest(points, 1, x)[0][:, 0]
    other = Blend(points.cuda(), normals.cuda(), near.cuda()[:, :among], on_gpu(jets), blend.reach, sharp)
    for (a, b), (c, d) in (
        (blend(x, index), other(x.cuda(), index.cuda())),
        (
            blend.vanishing(x, index, torch.full_like(x[:, 0], 1e-9), 3),
            other.vanishing(x.cuda(), index.cuda(), torch.full_like(x[:, 0], 1e-9).cuda(), 3),
        ),
    ):
        close = ((a - c.cpu()).reshape(len(x), -1).norm(dim=1) < 1e-11) & ((b - d.cpu()).norm(dim=1) < 1e-10)
        assert close.double().mean() > 0.999  # where two faces are equally near either may be taken


@pytest.mark.parametrize("k", [9, 32, 128])
def test_room_beside_samples(k):
    points, normals = bumpy_box()
    rows = (points[:, 2] > -0.5).nonzero()[:, 0]
    points, normals = points[rows], normals[rows]
    near = k_nearest(points, k)[0]
    *expected, reach = _empty_discs(points, normals, near)
    *found, there = _empty_discs(points.cuda(), normals.cuda(), near.cuda())
    for a, b in zip(expected, found, strict=True):
        assert a.any()
        assert (a == b.cpu()).double().mean() > 0.99999
    assert torch.allclose(reach, there.cpu(), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [64, 256])
def test_network_of_fits(k, dtype):
    from lamina.reconstruction.fit_network_kernel import fits_there

    points, normals = bumpy_box(dtype=dtype)
    near = k_nearest(points, k)[0]
    with torch.no_grad():
        network = shipped_fit_network().cpu()
        expected = network(Neighbourhoods.of(points, normals, near))
        there = Neighbourhoods.of(points.cuda(), normals.cuda(), near.cuda())
        assert fits_there(network.cuda(), there)
        found = network(there)
        network.cpu()
    for name, bound in (("share", 1e-3), ("log_error", 1e-3), ("vote", 1e-4), ("outlier_logit", 1e-2)):
        assert (getattr(found, name).cpu() - getattr(expected, name)).abs().max() < bound
    for name in ("centres", "frames", "coefficients"):
        assert (getattr(found.quadrics, name).cpu() - getattr(expected.quadrics, name)).abs().max() < 1e-3


def test_gradients_go_through_torch_on_the_gpu():
    points, normals = bumpy_box()
    near = k_nearest(points, 24)[0].cuda()
    live = points.cuda().requires_grad_()
    jets = fit_jets(live, normals.cuda(), near, 2)
    project(jets, points.cuda() + 0.01, near[:, 0])[0].sum().backward()
    assert live.grad is not None
    assert torch.isfinite(live.grad).all()
