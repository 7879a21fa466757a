"""Records the moving picture of the README: the stepper over its example, in headless Chromium.

    python kernelscope/tools/record_animation.py

It needs chromium and chromedriver on the PATH, Pillow and Selenium.

The kernel is the one that the README shows. Its two warps run one after another, warp 1 first, so
that the race has a victim. Each step is a frame of docs/race.gif. The page is the one that `trace`
writes, without its panel of sectors and banks, and rearranged so that both arrays fit on a screen.
"""

import hashlib
import io
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
from kernelscope import RawModule, Sanitizer, Tracer, observe
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

ENGINE = Path(__file__).resolve().parents[1]
README, PICTURE = ENGINE / "README.md", ENGINE / "docs" / "race.gif"
WARP_ORDER = "1"  # a seed: warp 1 runs before warp 0
WIDTH, HEIGHT, COLOURS = 800, 656, 256
STEP_MS, FINDING_MS, LAST_MS = 1100, 4500, 3500
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
LAYOUT = """
const style = document.createElement("style");
style.textContent = `body { margin: 0; padding: 0; }
    div.acs { border: 0; border-radius: 0; outline: 0 !important; min-height: 100vh; }
    .acs .acs-banner { height: 76px; }
    .acs .acs-source { height: 156px; }
    .acs .acs-variables .acs-scroll { max-height: 129px; }
    .acs .acs-access { display: none; }
    .acs .acs-global { margin-top: 10px; }`;
document.head.append(style);
document.querySelector(".acs-left").append(document.querySelector(".acs-global"));
"""


def example() -> str:
    """Return the README's kernel."""
    return re.search(r"^```cuda\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)[1]


def trace(path: Path) -> Tracer:
    """Return the steps of the example's launch, with what the sanitizer found on them."""
    os.environ["KERNELSCOPE_WARP_ORDER"] = WARP_ORDER
    kernel = RawModule(path=path, backend="simulator").get_function("transpose")
    with observe(Tracer(), Sanitizer()) as (tracer, found):
        kernel((1,), (8, 8), (np.arange(64, dtype=np.float32).reshape(8, 8),))
    if not tracer.mark(found.findings):
        raise ValueError("the example has no race")
    return tracer


def photographs(tracer: Tracer, folder: Path) -> list[Image.Image]:
    """Return one picture of the stepper for each step, with the warp that runs chosen."""
    tracer.to_html(folder / "trace.html", step=0)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--window-size={WIDTH},1000", f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get((folder / "trace.html").as_uri())
        driver.execute_script(LAYOUT)
        stepper = driver.find_element(By.CSS_SELECTOR, ".acs[data-step]")
        warps = Select(driver.find_elements(By.CSS_SELECTOR, ".acs-chooser select")[1])
        found = []
        for frame in tracer.frames:
            if frame["threads"]:
                warps.select_by_visible_text(str(frame["threads"][0] // 32))
            found.append(Image.open(io.BytesIO(driver.get_screenshot_as_png())))
            stepper.send_keys(Keys.ARROW_RIGHT)
        return found
    finally:
        driver.quit()


def animated(shots: list[Image.Image]) -> list[Image.Image]:
    """Return the pictures with one palette: what stays the same is not stored again."""
    strip = Image.new("RGB", (WIDTH, HEIGHT * len(shots)))
    for number, shot in enumerate(shots):
        strip.paste(shot, (0, HEIGHT * number))
    palette = strip.quantize(COLOURS, dither=Image.Dither.NONE)
    return [
        shot.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots
    ]


def main() -> None:
    source = example()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "transpose.cu").write_text(source)
        tracer = trace(Path(folder, "transpose.cu"))
        shots = [shot.crop((0, 0, WIDTH, HEIGHT)) for shot in photographs(tracer, Path(folder))]
    first, *rest = animated(shots)
    durations = [FINDING_MS if frame["finding"] else STEP_MS for frame in tracer.frames]
    durations[-1] = LAST_MS
    first.save(
        PICTURE,
        save_all=True,
        append_images=rest,
        duration=durations,
        loop=0,
        comment=hashlib.sha256(source.encode()).hexdigest(),  # a test compares it with the README
    )
    print(f"{PICTURE}: {len(shots)} frames, {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
