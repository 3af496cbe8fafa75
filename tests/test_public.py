"""No public name and no parameter is lost without a warning that says what to write."""

import json
import sys
import warnings

import public

RECORDED = json.loads(public.FILE.read_text())


def test_every_recorded_name_has_its_parameters():
    found = public.names()
    gone = [name for name in RECORDED if name not in found]
    assert not [name for name in gone if not warned(name)]
    for name in set(RECORDED) - set(gone):
        missing = set(RECORDED[name]) - set(found[name])
        # What a function takes as **options may be an old name that still works.
        assert not missing or "options" in found[name], f"{name} lost {sorted(missing)}"


def warned(name: str) -> bool:
    """Whether the old name still gives something, with a FutureWarning."""
    room, _, rest = name.rpartition(".")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            getattr(sys.modules.get(room) or getattr(sys.modules["lamina"], room.split(".")[1]), rest)
        except (AttributeError, KeyError):
            return False
    return any(issubclass(w.category, FutureWarning) for w in said)
