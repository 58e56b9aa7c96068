"""Formulae become MathML when the site is built: no page needs a script or the network.

`pymdownx.arithmatex` finds the formulae and leaves them as TeX; `latex2mathml` replaces
each.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def with_mathml(content: str) -> str:
    """A page with MathML for TeX; long formulae scroll on narrow screens."""
    content = DISPLAY.sub(
        lambda m: f'<div class="formula" tabindex="0">{_mathml(m[1], "block")}</div>',
        content,
    )
    return INLINE.sub(lambda m: _mathml(m[1], "inline"), content)


def _mathml(tex: str, display: str) -> str:
    return convert(html.unescape(tex).strip(), display=display)


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return with_mathml(content)
