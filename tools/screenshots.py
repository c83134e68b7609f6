"""Takes screenshots of the replay of each bundled environment, wide and narrow, light and dark, to look at.

python tools/screenshots.py FOLDER                  # needs chromium, chromedriver and the extras `train`, `render` and `test`
python tools/screenshots.py FOLDER Pendulum-v1      # of this environment alone

It writes `<name>-<width>-<theme>.png` of the page, and `<name>.png`, the picture that `render()` and videos have.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "images"))
from environments import EXAMPLES, record

from gpuvec import replay
from gpuvec.replay.scene import draw_frames

SIZES = ((1600, 1000), (400, 800))  # of the page [pixels]
THEMES = ("light", "dark")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


def start_browser() -> Any:
    """Returns a browser without a screen."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or ""))


def take_screenshots(driver: Any, page: Path, frame: int, target: Path) -> None:
    """Writes the screenshots of a page.

    Args:
        driver: the browser.
        page: the file of the replay.
        frame: that is shown.
        target: the paths without `-<width>-<theme>.png`.
    """
    for width, height in SIZES:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for theme in THEMES:
            media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            driver.get(page.as_uri())
            show = f"gpuvecReplay.setFrame({frame}); setTimeout(arguments[0], 300)"
            driver.execute_async_script(f"gpuvecReplay.ready.then(() => {{ {show} }})")
            (target.parent / f"{target.name}-{width}-{theme}.png").write_bytes(driver.get_screenshot_as_png())


def main() -> None:
    """Writes the screenshots to the folder of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *EXAMPLES], help="of environments; all by default")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    driver = start_browser()
    try:
        for name in arguments.names or EXAMPLES:
            scene, target = record(name), arguments.folder / name
            canvases = draw_frames(scene.episode)
            frame = EXAMPLES[name].moment % len(canvases)
            Image.fromarray(canvases[frame].array()).save(target.with_suffix(".png"))
            page = replay.write(target.with_suffix(".html"), [scene])
            take_screenshots(driver, page, frame, target)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
