"""The latent code of a DeepSDF network, found from the temperature on the shape that it stands for."""

import pytest
import torch

import lamina

pytestmark = pytest.mark.data


@pytest.mark.slow
def test_a_latent_code_is_recovered_from_the_temperature_that_its_shape_has(data):
    folder = data / "neural" / "deepsdf_fbformat_roundcross"
    shape = lamina.load(folder, latent=5)
    assert isinstance(shape, lamina.Implicit)
    decoder, sign = shape.phi.field, shape.phi.sign
    sensors = shape.points[::37]

    def temperature(code):
        def phi(x):
            return sign * decoder.net.raw(x, code).reshape(len(x))

        surface = lamina.Implicit(phi, shape.box, samples=2000)
        domain = lamina.Domain(surface, spacing=0.2, order=2, origin=(0.0, 0.0, 0.0))
        u = lamina.poisson(domain, lambda x: torch.sin(2 * x[:, 0]) * torch.cos(x[:, 1]) + x[:, 2], screening=2.0)
        return u(sensors)

    true = decoder.latents[5].detach()
    target = temperature(true)
    code = (true + 0.05).requires_grad_()
    optimiser = torch.optim.LBFGS([code], max_iter=5, line_search_fn="strong_wolfe", tolerance_change=1e-7)

    def loss():
        optimiser.zero_grad()
        value = (temperature(code) - target).square().mean() / target.var()
        value.backward()
        return value

    first = float(loss().detach())
    optimiser.step(loss)
    assert float(loss().detach()) < 1e-5 * first
    assert float((code.detach() - true).abs().max()) < 1e-3
