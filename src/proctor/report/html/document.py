"""The template of all pages: one self-contained HTML file.

Python embeds the values as JSON, and a script draws them with ``parts.js``. Text from outside is
never markup: the JSON is escaped, the script inserts text only, and the page's content security
policy allows no other script and fetches nothing but the videos beside it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any


def document_html(
    name: str,
    values: Mapping[str, Any],
    *,
    styles: tuple[str, ...],
    scripts: tuple[str, ...] = (),
    media: bool = False,
) -> str:
    """Return a page: its body is ``report/NAME.html``, and ``NAME.js`` draws ``values`` into it.

    Args:
        name: room and base name of the body and the script, as in "run/page".
        values: JSON values; "title" is required.
        styles: CSS files in ``report``, after the one of all pages.
        scripts: further scripts in ``report`` that ``NAME.js`` uses.
        media: the page embeds videos, or is served with images.
    """
    style = "".join(_resource(file) for file in ("html/page.css", *styles))
    script = "".join(_resource(file) for file in ("html/parts.js", *scripts, f"{name}.js"))
    parts = {
        "policy": _security_policy(style, script, live=bool(values.get("live")), media=media),
        "title": html_text(str(values["title"])),
        "style": style,
        "body": _resource(f"{name}.html"),
        "values": script_json(values),
        "script": script,
    }
    # One pass: a title that looks like a placeholder must stay a title.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _resource("html/document.html"))


def script_json(values: Any) -> str:
    """Return JSON that is safe inside a script element: ASCII, without ``<``, ``>`` and ``&``."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def html_text(text: str) -> str:
    """Return text as ASCII HTML, even if it is an undecodable file name."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return html.escape(shown).encode("ascii", "xmlcharrefreplace").decode()


def _resource(name: str) -> str:
    return resources.files("proctor.report").joinpath(name).read_text(encoding="utf-8")


def _security_policy(style: str, script: str, *, live: bool, media: bool) -> str:
    """Return the content security policy: our style and script, and media of the same origin.

    ``live`` also allows requests for updates.
    """
    updates = "connect-src 'self'; " if live or media else ""
    videos = "'self' blob:" if media else "'self' file:"
    images = "'self' data:" if media else "data:"
    return (
        f"default-src 'none'; {updates}style-src {_sha256(style)}; script-src {_sha256(script)}; "
        f"media-src {videos}; img-src {images}; base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
