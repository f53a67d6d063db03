"""What every page must be: well formed, closed to the outside, and usable by keyboard and ear."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "br"}
_HEADINGS = ("h1", "h2", "h3")


class Page(HTMLParser):
    """A page's elements in order, with the text in each; trips over tags that do not nest."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[tuple[str, int]] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.append("")
        if tag not in _VOID:
            self._open.append((tag, len(self.elements) - 1))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        opened, _ = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        for _, number in self._open:
            self.texts[number] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> list[str]:
        """The words of every such element, blanks folded."""
        found = zip(self.elements, self.texts, strict=True)
        return [" ".join(words.split()) for (name, _), words in found if name == tag]

    @property
    def words(self) -> str:
        return self.text("body")[0]

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


def check(source: str) -> Page:
    """Assert what holds for every page, and give it for more."""
    page = Page(source)
    _is_closed(page)
    _can_be_heard(page)
    return page


def _is_closed(page: Page) -> None:
    """Nothing is asked for from outside, and nothing could run."""
    assert page.all("script") == page.all("iframe") == page.all("object") == page.all("form") == []
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "srcset", "poster", "data", "action"):
                assert value.startswith(("#", "data:")), (tag, name, value[:80])
    style = page.text("style")[0]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")


def _can_be_heard(page: Page) -> None:
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    for tag, attributes in page.elements:
        for name in ("aria-labelledby", "href"):
            value = attributes.get(name, "")
            if name == "aria-labelledby" and value:
                assert value in ids, (tag, value)
            if value.startswith("#"):
                assert value[1:] in ids, value
    headings = [tag for tag, _ in page.elements if tag in _HEADINGS]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    assert page.all("html") == [{"lang": "en"}]
    links = page.all("a")
    assert (links[0]["class"], links[0]["href"]) == ("skip", "#main")
    for image in page.all("img"):
        assert image["alt"]
    for svg in page.all("svg"):
        # A picture with words of its own, one beside words, or the inner window of a chart.
        assert svg.get("aria-label") or svg.get("aria-hidden") == "true" or "x" in svg
    for region in (one for one in page.all("div") if one.get("class") == "scroll"):
        assert (region["tabindex"], region["role"]) == ("0", "region")
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    assert len(page.all("details")) == len(page.all("summary"))
