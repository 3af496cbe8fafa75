"""Tests marked `data` need the evaluation shapes, tests marked `gpu` a CUDA device; without them they are skipped."""

import os
import sys
from pathlib import Path

os.environ.setdefault("LAMINA_CHECK_SHAPES", "1")  # before lamina is imported

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # on a bare GPU machine
    pass
else:
    # How long an example takes says more about what else the machine does than about the example.
    settings.register_profile("lamina", deadline=None)
    settings.load_profile("lamina")


# Those that take ten seconds and more. They come first, shared out to two workers: last, one of them would keep one
# worker busy while the other waits.
LONG = (
    "test_example[learn_from_heat]",
    "test_example[recover_a_shape]",
    "test_training_lowers_the_loss_and_leaves_a_network",
    "test_training_clouds_come_in_every_kind_and_repeat_themselves",
    "test_a_latent_code_is_recovered_from_the_temperature_that_its_shape_has",
    "test_the_expected_error_is_about_the_true_one",
    "test_a_trained_unicorn_has_the_area_and_the_mean_of_an_independent_measurement",
    "test_error_from_ten_thousand_samples[0.005-0.0006]",
    "test_noise_is_smoothed_and_the_scheme_that_bears_it_chosen",
    "test_explicit_euler_is_first_order_and_agrees",
    "test_published_checkpoint_gives_the_published_extension",
    "test_poisson_on_the_sphere_has_the_error_of_the_paper_at_a_thousand_samples",
    "test_sheets_too_close_for_the_finest_pieces_are_said_to_be",
)


# The paper's method and the baselines beside the engine: make test-slow guards them.
BASELINE_MODULES = (
    "test_ablations", "test_attention", "test_coupled_rims", "test_gino", "test_interpolation", "test_laplacian",
    "test_network", "test_patches", "test_reproduce", "test_shell", "test_shipped_weights", "test_training",
)  # fmt: skip
BASELINE_SCHEMES = {"coupled", "shell"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        call = getattr(item, "callspec", None)
        schemes = set() if call is None else {value for value in call.params.values() if isinstance(value, str)}
        if item.path.stem in BASELINE_MODULES or schemes & BASELINE_SCHEMES:
            item.add_marker(pytest.mark.slow)
    _long_ones_first(items)
    folder = os.environ.get("LAMINA_DATA", "")
    missing = {}
    if not (folder and Path(folder).is_dir()):
        missing["data"] = f"LAMINA_DATA={folder!r} does not name a folder"
    if not torch.cuda.is_available():
        missing["gpu"] = "no CUDA device"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _long_ones_first(items: list[pytest.Item]) -> None:
    """Reorder: half of the long ones at the start, half in the middle, where the second of two workers begins."""
    rank = {name: i for i, name in enumerate(LONG)}
    long = sorted((item for item in items if item.name in rank), key=lambda item: rank[item.name])
    others = [item for item in items if item.name not in rank]
    middle = (len(items) + 1) // 2 - len(long[::2])
    items[:] = long[::2] + others[:middle] + long[1::2] + others[middle:]


@pytest.fixture
def data() -> Path:
    """The folder of evaluation shapes."""
    return Path(os.environ["LAMINA_DATA"])


@pytest.fixture
def program(monkeypatch, capsys):
    """Call the program in this process, as its entry point does; its status, stdout and stderr."""

    def call(*arguments):
        from lamina import cli  # which a bare GPU machine cannot import

        monkeypatch.setattr(sys, "argv", ["lamina", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return call
