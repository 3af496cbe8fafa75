"""The scripts in examples/ run as they are, and find what they say; the documentation names all of them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

EXPECTED = {
    "heat_on_a_mesh": lambda f: f["drift"] < 1e-4 and f["hottest_last"] < f["hottest_first"] <= 1 + 1e-6,
    "noisy_points": lambda f: f["nmae"] < 5e-3,
    "splats": lambda f: 0.85 < f["kept"] < 0.99 and f["nmae"] < 2e-3,
    "neural_field": lambda f: f["off"] < 0.15 and f["nmae"] < 2e-2,
    "convergence": lambda f: f["order 2"] > 1.3 and f["order 3"] > 2.8,
    "held_at_the_rim": lambda f: f["largest_error"] < 5e-4 and abs(f["decay"] - f["expected_decay"]) < 1e-3,
    "inverse_source": lambda f: f["off"] <= 1e-6 and f["iterations"] <= 20 and f["source_error"] < 0.12,
    "recover_a_shape": lambda f: f["off"] < 1e-3 and f["last_loss"] < 1e-6 * f["first_loss"],
    "learn_from_heat": lambda f: f["accuracy"] >= 0.75
    and f["last_loss"] < 0.6 * f["first_loss"]
    and f["times_moved"] > 0.1
    and f["epoch_seconds"] < f["eigenmodes_seconds"],
    "vibrations": lambda f: f["largest_error"] < 5e-3,
}


SLOW = ("inverse_source", "learn_from_heat", "neural_field", "noisy_points", "recover_a_shape", "splats")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCRIPTS]
)
def test_example(name, tmp_path):
    specification = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert specification
    assert specification.loader
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    figures = script.main(tmp_path)
    assert EXPECTED[name](figures), figures
    made = list(tmp_path.iterdir())
    assert made
    for path in made:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert np.ptp(np.asarray(image.convert("RGB")).astype(int), axis=2).max() > 60
        elif path.suffix == ".html":
            assert "lamina-header" in path.read_text()


def test_every_example_is_in_the_documentation():
    text = (ROOT / "docs" / "examples.md").read_text()
    assert sorted(EXPECTED) == SCRIPTS
    assert [name for name in SCRIPTS if f"`{name}.py`" not in text] == []
