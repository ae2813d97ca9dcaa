"""A real Chromium that opens one page, as a laptop or a phone shows it, and tells what went wrong in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

Theme = Literal["light", "dark"]
LAPTOP, PHONE = (1280, 800), (390, 844)


@dataclass(frozen=True)
class Programs:
    """Where they are installed."""

    chromium: str
    driver: str


class Browser:
    """One browser for several pages; ended with everything it started."""

    def __init__(self, programs: Programs, profile: Path) -> None:
        options = Options()
        options.binary_location = programs.chromium
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}"]
        for flag in flags:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(programs.driver))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self.driver.quit()

    def open(self, page: Path, size: tuple[int, int] = LAPTOP, theme: Theme = "light") -> None:
        """Open a page as a reader with these settings gets it."""
        self.resize(*size)
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.driver.get(page.as_uri())
        self.run("localStorage.clear(); delete document.documentElement.dataset.theme")
        self.driver.get(page.as_uri())

    def resize(self, width: int, height: int) -> None:
        """Be a screen of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """Press keys, as a reader without a mouse does."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab(self) -> str:
        """Press Tab and tell what has the focus now."""
        self.press(Keys.TAB)
        return str(self.run("const e = document.activeElement; return e.id || e.textContent.trim() || e.tagName"))

    def console(self) -> list[str]:
        """Return what the page complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def requests(self) -> set[str]:
        """Return what pages asked for since the last call, themselves included."""
        entries = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        events = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        # The browser's own empty page loads its parts as well, before anything is opened.
        own = [entry["request"]["url"] for entry in sent if entry["documentURL"].startswith("file:")]
        return {url for url in own if not url.startswith("data:")}
