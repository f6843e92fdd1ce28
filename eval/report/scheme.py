"""Figures as SVG whose colours follow the colour scheme of whoever looks at them."""

from __future__ import annotations

import io
import re

import matplotlib
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

PHOTO = "photo"
"""Begins the id of axes whose pictures are the same in both schemes; other pixels are colours of a
scale."""

CONTRAST = 0.83
"""Of the dark scheme: white becomes the ground of our pages, black their ink."""

FILTER = f"invert(1) hue-rotate(180deg) contrast({CONTRAST})"
"""`dark_colour`, as CSS has it for pixels."""

_COLOUR = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})\b")
_CLIP = re.compile(r"url\(#(p[0-9a-f]{10})\)")
_NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def dark_colour(colour: str) -> str:
    """Return the colour that stands on a dark ground where `colour` stands on white.

    Its hue stays, its lightness is turned round: what `FILTER` does.

    Args:
        colour: ``#rrggbb``.
    """
    red, green, blue = (1 - value for value in to_rgb(colour))
    return str(
        to_hex(
            (
                _in_contrast(-0.574 * red + 1.43 * green + 0.144 * blue),
                _in_contrast(0.426 * red + 0.43 * green + 0.144 * blue),
                _in_contrast(0.426 * red + 1.43 * green - 0.856 * blue),
            )
        )
    )


def _renumber_clips(text: str) -> str:
    """Name clip paths by their order; matplotlib names them by where they lie in memory."""
    names: dict[str, str] = {}
    for name in _CLIP.findall(text):
        names.setdefault(name, f"clip{len(names)}")
    for name, number in names.items():
        text = text.replace(f"url(#{name})", f"url(#{number})").replace(
            f'id="{name}"', f'id="{number}"'
        )
    return text


def _in_contrast(value: float) -> float:
    return CONTRAST * (min(max(value, 0.0), 1.0) - 0.5) + 0.5


def scheme_svg(figure: Figure, dpi: float) -> str:
    """Return a figure as SVG that is dark where a dark scheme is preferred, and light on paper.

    The same figure gives the same text. Words are drawn as outlines, so that no font is needed.

    Args:
        dpi: of pictures in it.
    """
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedre-privacy", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", dpi=dpi, metadata=_NOTHING)
    text = _renumber_clips(out.getvalue().decode("utf-8"))
    found = sorted({colour for _, colour in _COLOUR.findall(text)})
    text = _COLOUR.sub(lambda one: f"{one[1]}: var(--c{one[2][1:]})", text)
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in found)
    dark = "".join(f"--c{colour[1:]}:{dark_colour(colour)};" for colour in found)
    style = (
        f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{"
        f":root{{{dark}fill:{dark_colour('#000000')}}}"
        f"image{{filter:{FILTER}}}[id^={PHOTO}] image{{filter:none}}}}"
    )
    return text.replace("</style>", f"{style}</style>", 1)
