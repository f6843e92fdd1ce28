"""Names that elements of the theme's pages lack."""

from __future__ import annotations

from typing import Any

LACKING = {
    'class="md-search" data-md-component="search" role="dialog"': 'aria-label="Search"',
    'data-md-toggle="search" type="checkbox" id="__search"': 'aria-label="Search"',
    'data-md-toggle="drawer" type="checkbox" id="__drawer"': 'aria-label="Navigation"',
}
"""What to add to an element of the theme."""


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Add it to pages of the theme's own, such as that of a page not found."""
    return accessible(output_content) if template_name.endswith(".html") else output_content


def on_post_page(output: str, **_: Any) -> str:
    """Add it to a page."""
    return accessible(output)


def accessible(page: str) -> str:
    """A page with names for what has none."""
    for element, name in LACKING.items():
        page = page.replace(element, f"{element} {name}")
    return page
