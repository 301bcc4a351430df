"""Files on the page, in a real browser: chosen, pasted and dropped, up to the requests of a real model server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.integration.test_files import NOTES, Service, check_parts, parts, service
from tests.support.browser import PageUser, open_page, skip_if_excluded
from tests.support.files import PDF, PNG
from tests.support.waiting import eventually

__all__ = ["service"]

pytestmark = pytest.mark.browser

# Dispatches an event that carries files, as a browser does when a person pastes or drops them.
WITH_FILES = """([type, files]) => {
  const data = new DataTransfer();
  for (const [name, kind, text] of files) {
    data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, { type: kind }));
  }
  const target = document.querySelector("#composer");
  const init = { bubbles: true, cancelable: true };
  if (type === "paste") target.dispatchEvent(new ClipboardEvent(type, { ...init, clipboardData: data }));
  else target.dispatchEvent(new DragEvent(type, { ...init, dataTransfer: data }));
}"""
BROUGHT_MAX_MS = 4_000  # until the files of an event are listed
FILES = [("photo.png", "image/png", PNG), ("report.pdf", "application/pdf", PDF), ("notes.txt", "text/plain", NOTES)]


@pytest.fixture
def user(chromium: Browser, service: Service) -> Iterator[PageUser]:
    skip_if_excluded()
    with open_page(chromium, PageService(service)) as user:  # type: ignore[arg-type]
        yield user.sign_in()


class PageService:
    """What a user of the page needs to know of a service."""

    def __init__(self, service: Service) -> None:
        self.url = service.url
        self.sign_in_url = f"{service.url}/#token={service.commands.token}"


def attached(user: PageUser) -> Locator:
    return user.page.get_by_role("list", name="Attached files").get_by_role("listitem")


def bring(user: PageUser, event: str, *files: tuple[str, str, bytes]) -> None:
    """Paste or drop files. On a busy machine, an event right after the page has opened may come to nothing."""
    encoded = [(name, kind, base64.b64encode(content).decode()) for name, kind, content in files]
    before = attached(user).count()

    def brought() -> bool:
        user.page.evaluate(WITH_FILES, [event, encoded])
        if event == "dragenter":  # brings nothing yet
            return True
        try:
            expect(attached(user)).not_to_have_count(before, timeout=BROUGHT_MAX_MS)
        except AssertionError:
            return False
        return True

    eventually(brought)


def send(user: PageUser, service: Service, text: str) -> None:
    """Send what is attached, and wait for the answer."""
    expect(user.page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    asked = len(service.model.requests)
    user.send(text)
    eventually(lambda: len(service.model.requests) > asked)
    expect(user.log.get_by_role("article", name="seer").last).to_contain_text("I see.")


def test_files_are_chosen_pasted_and_dropped(user: PageUser, service: Service, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PNG)

    with user.page.expect_file_chooser() as chooser:
        user.page.get_by_role("button", name="Attach").click()
    chooser.value.set_files(tmp_path / "photo.png")
    expect(attached(user)).to_have_count(1)
    bring(user, "paste", FILES[1])
    expect(attached(user)).to_have_count(2)
    bring(user, "dragenter", FILES[2])
    expect(user.page.get_by_text("Drop files to attach them")).to_be_visible()
    bring(user, "drop", FILES[2])
    expect(attached(user)).to_have_count(3)
    expect(user.page.get_by_text("Drop files to attach them")).to_have_count(0)
    expect(attached(user).nth(0).locator("img")).to_be_visible()
    send(user, service, "Look")

    check_parts(parts(service.model.requests[-1]), "Look")
    expect(attached(user)).to_have_count(0)
    expect(user.log.get_by_role("img", name="photo.png")).to_be_visible()
    with user.page.expect_download() as download:
        user.log.get_by_role("button", name="Download report.pdf").click()
    assert download.value.suggested_filename == "report.pdf"
    assert Path(download.value.path()).read_bytes() == PDF
    assert user.page_errors == []


def test_a_message_of_files_only_and_a_file_that_is_removed(user: PageUser, service: Service) -> None:
    bring(user, "paste", FILES[0], FILES[2])
    expect(attached(user)).to_have_count(2)
    user.page.get_by_role("button", name="Remove notes.txt").click()
    expect(attached(user)).to_have_count(1)
    send(user, service, "")

    assert [part["type"] for part in parts(service.model.requests[-1])] == ["input_image"]
    expect(user.log.get_by_role("img", name="photo.png")).to_be_visible()


def test_a_refused_file_says_why_and_keeps_the_message(user: PageUser, service: Service) -> None:
    bring(user, "drop", ("photo.png", "image/png", b"\x7fELF" + bytes(60)))
    user.message_box.fill("Look at this")

    expect(attached(user).get_by_role("alert")).to_contain_text("Linux program")
    expect(user.page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    user.page.get_by_role("button", name="Remove photo.png").click()
    send(user, service, "Look at this")

    assert service.model.requests[-1]["input"][-1]["content"] == "Look at this"


def test_a_deleted_picture_says_so(user: PageUser, service: Service) -> None:
    bring(user, "paste", FILES[0])
    send(user, service, "Keep it short")
    with service.client() as client:
        client.delete_file(client.files(limit=1).files[0].file_id)
    user.page.reload()

    expect(user.log.get_by_text("deleted")).to_be_visible()
