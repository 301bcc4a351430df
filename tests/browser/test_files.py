"""Files on the page, in a real browser: chosen, pasted and dropped, up to the requests of a real model server."""

from __future__ import annotations

import base64
import re
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
# Sends the message, lets the page draw that, and pastes and types before the browser reports the new address.
SEND_AND_GO_ON = """async ([withFiles, files]) => {
  document.querySelector("#composer").focus();
  document.querySelector("#composer").form.requestSubmit();
  await Promise.resolve();
  eval(withFiles)(files);
  document.execCommand("insertText", false, "and this");
}"""
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
    """Paste or drop files."""
    encoded = [(name, kind, base64.b64encode(content).decode()) for name, kind, content in files]
    user.page.evaluate(WITH_FILES, [event, encoded])


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


def test_files_are_taken_while_the_routes_of_the_server_are_not_known_yet(chromium: Browser, service: Service) -> None:
    with open_page(chromium, PageService(service)) as user:  # type: ignore[arg-type]
        held = user.hold_requests("**/openapi.json")
        user.sign_in()

        bring(user, "paste", FILES[0])
        bring(user, "drop", FILES[1])

        expect(attached(user)).to_have_count(2)
        for route in held:
            route.continue_()
        send(user, service, "Look")
        assert len(parts(service.model.requests[-1])) == 3


def test_what_is_added_right_after_the_first_message_belongs_to_the_new_conversation(user: PageUser) -> None:
    """The address changes with the first message. Its event comes later than the next paste can."""
    user.message_box.fill("hello")
    encoded = base64.b64encode(NOTES).decode()

    user.page.evaluate(SEND_AND_GO_ON, [WITH_FILES, ["paste", [("notes.txt", "text/plain", encoded)]]])

    expect(user.page).to_have_url(re.compile("#/c/"))
    expect(attached(user)).to_have_count(1)
    expect(user.message_box).to_have_value("and this")


def test_attached_files_survive_a_reload(user: PageUser, service: Service) -> None:
    bring(user, "paste", FILES[0])
    user.message_box.fill("Look")
    expect(user.page.get_by_role("button", name="Send", exact=True)).to_be_enabled()

    user.page.reload()

    expect(attached(user)).to_contain_text("photo.png")
    send(user, service, "Look")
    assert [part["type"] for part in parts(service.model.requests[-1])] == ["input_text", "input_image"]
    user.page.reload()
    expect(user.log.get_by_role("img", name="photo.png")).to_be_visible()
    expect(attached(user)).to_have_count(0)


def test_an_upload_that_a_reload_ended_says_so(user: PageUser, service: Service) -> None:
    user.hold_requests("**/api/files?name=*")
    bring(user, "paste", FILES[0])
    expect(attached(user)).to_contain_text("Uploading")

    user.page.reload()  # with the request still held: without the hold, the upload could succeed before the reload

    expect(attached(user).get_by_role("alert")).to_have_text("The upload was interrupted. Attach the file again.")
    user.page.get_by_role("button", name="Remove photo.png").click()
    expect(attached(user)).to_have_count(0)


def test_an_upload_that_lost_its_connection_can_be_tried_again(user: PageUser, service: Service) -> None:
    user.page.route("**/api/files?name=*", lambda route: route.abort(), times=1)
    bring(user, "paste", FILES[0])
    expect(attached(user).get_by_role("alert")).to_have_text("The server cannot be reached.")

    attached(user).get_by_role("button", name="Try again").click()

    send(user, service, "")
    assert [part["type"] for part in parts(service.model.requests[-1])] == ["input_image"]


def test_nothing_that_was_not_sent_is_left_after_a_sign_out(user: PageUser, service: Service) -> None:
    asked = len(service.model.requests)
    user.page.route("**/api/sdk/session/message*", lambda route: route.abort())
    user.send("for later")
    expect(user.log.get_by_text("Not sent yet")).to_be_visible()
    bring(user, "paste", FILES[0])
    user.message_box.fill("a draft")
    expect(user.page.get_by_role("button", name="Send", exact=True)).to_be_enabled()

    user.page.get_by_role("button", name="Sign out").click()
    user.page.unroute("**/api/sdk/session/message*")
    user.page.get_by_label("Token or key").fill(service.commands.token)
    user.page.get_by_label("Token or key").press("Enter")

    user.expect_live()
    expect(attached(user)).to_have_count(0)
    expect(user.message_box).to_have_value("")
    expect(user.log.get_by_text("for later")).to_have_count(0)
    assert len(service.model.requests) == asked
