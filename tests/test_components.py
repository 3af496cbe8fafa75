"""The operator's components are the domain's: scraps and specks go, and what is one surface stays one."""

import pytest
import torch

import lamina


def balls(*spheres):
    """The level set of spheres (x, y, z, radius)."""
    table = torch.tensor(spheres, dtype=torch.float64)

    def phi(x):
        return ((x[:, None] - table[:, :3].to(x)).norm(dim=2) - table[:, 3].to(x)).amin(1)

    reach = table[:, 3:]
    low, high = (table[:, :3] - reach).amin(0) - 0.3, (table[:, :3] + reach).amax(0) + 0.3
    return lamina.Implicit(phi, bounds=torch.stack([low, high]))


@pytest.mark.slow
def test_specks_of_a_level_set_are_left_out_and_said():
    surface = balls((0, 0, 0, 1.0), (1.4, 0, 0, 0.09), (0, 1.3, 0.2, 0.08))
    domain = lamina.Domain(surface, 0.1)
    assert domain.component_count == 1
    assert any("2 parts of the surface" in warning for warning in domain.warnings)
    eigenvalues = lamina.eigenmodes(domain, 9).eigenvalues
    exact = torch.tensor([0.0] + 3 * [2.0] + 5 * [6.0], dtype=torch.float64)
    torch.testing.assert_close(eigenvalues, exact, atol=1e-8, rtol=0.01)
    assert torch.isfinite(lamina.heat(domain, lambda x: x[:, 0], 0.1).values).all()


def test_parts_of_similar_size_are_all_kept():
    domain = lamina.Domain(balls((0, 0, 0, 1.0), (2.5, 0, 0, 0.5)), 0.1)
    assert domain.component_count == 2
    assert domain.warnings == []
    assert sorted(domain.component.bincount().tolist())[0] == pytest.approx(0.2 * len(domain.points), rel=0.1)


def test_modes_of_all_components_or_of_the_largest():
    domain = lamina.Domain(balls((0, 0, 0, 1.0), (2.5, 0, 0, 0.5)), 0.1)
    both = lamina.eigenmodes(domain, 5).eigenvalues
    torch.testing.assert_close(both, torch.tensor([0, 0, 2, 2, 2.0]).double(), atol=1e-8, rtol=0.01)
    largest = lamina.eigenmodes(domain, 4, components="largest")
    torch.testing.assert_close(largest.eigenvalues, torch.tensor([0, 2, 2, 2.0]).double(), atol=1e-8, rtol=0.01)
    small = domain.points[:, 0] > 1.7
    assert float(largest.values[:, small].abs().max()) == 0
    with pytest.raises(lamina.InputError, match='"all" or "largest", got \'some\''):
        lamina.eigenmodes(domain, 4, components="some")


def test_a_neck_thinner_than_the_cells_still_joins_what_it_joins():
    def phi(x):
        ends = (x * x.new_tensor([[1, 1, 0]])).norm(dim=1) - 0.05
        neck = torch.maximum(ends, x[:, 2].abs() - 0.2)
        ball = torch.stack([x[:, 0], x[:, 1], x[:, 2].abs() - 1.04], 1).norm(dim=1) - 1
        return torch.minimum(ball, neck)

    surface = lamina.Implicit(phi, bounds=[[-1.2, -1.2, -2.2], [1.2, 1.2, 2.2]])
    domain = lamina.Domain(surface, 0.4)
    assert domain.component_count == 1
    modes = lamina.eigenmodes(domain, 3)
    # The slowest mode is the exchange between the two balls; it is far slower than any within one, and not zero.
    assert 0.05 < modes.eigenvalues[1] < 0.5
    assert modes.eigenvalues[2] > 1.5


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["splats/unicorn_head_sh3_5k.ply", "splats/unicorn_stuffy_sh0.ply"])
def test_splats_have_modes_that_are_not_zero(name, data):
    domain = lamina.Domain(lamina.load(data / name))
    assert domain.component_count == 1
    assert lamina.eigenmodes(domain, 4).eigenvalues[1] > 0.1
