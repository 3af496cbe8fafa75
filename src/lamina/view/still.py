"""A scene as a small picture with a line of facts, which a notebook shows for a solution."""

from __future__ import annotations

import base64
import html
import io

import numpy as np

from lamina.view.render import render
from lamina.view.scene import Scene

STILL_SIZE = (420, 340)  # pixels


def still_html(scene: Scene) -> str:
    """The last state of a scene as HTML: a PNG within the text, and facts of the solve below it."""
    values = scene.values[-1]
    picture = render(
        scene.points,
        values,
        faces=scene.faces,
        normals=scene.normals,
        size=STILL_SIZE,
        title=scene.title,
        name=scene.name,
        unit=scene.unit,
        time=scene.times[-1] if scene.has_time else None,
        time_unit=scene.time_unit,
    )
    file = io.BytesIO()
    picture.save(file, format="PNG")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    width, height = STILL_SIZE
    return (
        f'<div><img width="{width}" height="{height}" alt="{html.escape(scene.title)}" '
        f'src="data:image/png;base64,{data}"><br><small>{html.escape(_facts(scene))}</small></div>'
    )


def _facts(scene: Scene) -> str:
    finite = scene.values[-1][np.isfinite(scene.values[-1])]
    facts = [f"{scene.field_name} from {finite.min():.4g} to {finite.max():.4g}"] if finite.size else []
    facts.append(f"{len(scene.points):,} {'points' if scene.faces is None else 'vertices'}")
    if "nodes" in scene.facts:
        facts.append(f"{scene.facts['nodes']:,} nodes of spacing {scene.facts['spacing']:.3g}")
    if "residual" in scene.facts:
        facts.append(f"{scene.facts['cycles']} cycles, residual {scene.facts['residual']:.1e}")
    if len(scene.times) > 1:
        facts.append(f"{len(scene.times)} frames")
    warnings = len(scene.facts.get("warnings") or ())
    if warnings:
        facts.append(f"{warnings} warning{'s' if warnings > 1 else ''} in .report()")
    return "; ".join(facts) + ". Call .show() to turn it and to read values."
