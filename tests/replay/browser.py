"""A browser without a screen, through which tests drive the pages of replays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

selenium_webdriver = pytest.importorskip("selenium.webdriver", reason="selenium, which drives a browser, is not installed")

from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver (Debian: chromium, chromium-driver) are not installed"
)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--window-size=1280,800",
)  # fmt: skip
SET_SPEED = """
const speed = document.getElementById("speed");
speed.value = arguments[0];
speed.dispatchEvent(new Event("change"));
"""
MINUS = "\N{MINUS SIGN}"


class Page:
    """A page of a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        self.driver.get(path.as_uri())
        ready = "gpuvecReplay.ready.then(() => arguments[0](null), (error) => arguments[0](`${error.stack}`))"
        assert self.driver.execute_async_script(ready) is None

    def api(self, expression: str) -> Any:
        return self.driver.execute_script(f"return gpuvecReplay.{expression}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        read = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.driver.execute_script(read, selector)

    def numbers(self, selector: str) -> list[float]:
        return [float(text.replace(MINUS, "-")) for text in self.texts(selector)]

    def set_speed(self, speed: str) -> None:
        self.driver.execute_script(SET_SPEED, speed)

    def wait_for(self, condition: str) -> int:
        """Waits for a condition in JavaScript, and returns the frame."""
        wait = f"const wait = () => (({condition}) ? done(gpuvecReplay.frame) : setTimeout(wait, 5)); wait()"
        return int(self.driver.execute_async_script(f"const done = arguments[0]; {wait}"))

    def wait_until(self, condition: str) -> None:
        """Waits for a condition in JavaScript, in a page that need not have a replay."""
        wait = f"const wait = () => (({condition}) ? done() : setTimeout(wait, 5)); wait()"
        self.driver.execute_async_script(f"const done = arguments[0]; {wait}")

    @contextmanager
    def script_before_load(self, source: str) -> Iterator[None]:
        """Runs a script before those of pages that are opened."""
        script = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    def press(self, keys: str) -> None:
        self.find("body").send_keys(keys)

    def click(self, selector: str, x: float, y: float) -> None:
        """Clicks at CSS pixels from the upper left corner of an element."""
        element = self.find(selector)
        size = element.size
        offset = round(x - size["width"] / 2), round(y - size["height"] / 2)
        selenium_webdriver.ActionChains(self.driver).move_to_element_with_offset(element, *offset).click().perform()

    def values(self, scene: int, name: str) -> np.ndarray[Any, Any]:
        field = self.api(f"values({scene}, '{name}')")
        return np.array(field["data"], float).reshape(field["shape"])

    def errors(self) -> list[str]:
        """Errors of the console since the last call; the policy of the page reports there what it blocks."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """Addresses that were requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@contextmanager
def open_browser(profile: Path) -> Iterator[Page]:
    """Starts a browser, and ends it.

    Args:
        profile: the folder for its settings.
    """
    options = selenium_webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium_webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield Page(driver)
    finally:
        driver.quit()
