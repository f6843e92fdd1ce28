"""Names that elements of the theme's pages lack, and figures that open in full size."""

from __future__ import annotations

import re
from typing import Any

LACKING = {
    'class="md-search" data-md-component="search" role="dialog"': 'aria-label="Search"',
    'data-md-toggle="search" type="checkbox" id="__search"': 'aria-label="Search"',
    'data-md-toggle="drawer" type="checkbox" id="__drawer"': 'aria-label="Navigation"',
}
"""What to add to an element of the theme."""

FIGURE = re.compile(r'<p>(<img alt="[^"]*" src="([^"#]+)" />)</p>')
"""A figure by itself; those of one scheme alone have a mark in their address."""


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Add it to pages of the theme's own, such as that of a page not found."""
    return accessible(output_content) if template_name.endswith(".html") else output_content


def on_post_page(output: str, **_: Any) -> str:
    """Add it to a page."""
    return accessible(output)


def accessible(page: str) -> str:
    """A page with names for what has none, whose figures are links to themselves."""
    for element, name in LACKING.items():
        page = page.replace(element, f"{element} {name}")
    return FIGURE.sub(r'<p class="figure"><a href="\2">\1</a></p>', page)
