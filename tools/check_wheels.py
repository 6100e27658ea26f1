"""Look into built wheels, and compare what an installation of them lists with what they declare.

    python tools/check_wheels.py DIST_FOLDER PLUGINS_JSON

PLUGINS_JSON is the output of `xcfg plugins list --json` in an environment where all wheels are installed.
Prints one line per fault and ends with 1 if there is any.
"""

from __future__ import annotations

import configparser
import json
import sys
import zipfile
from email import message_from_string
from pathlib import Path


def faults_of_wheel(wheel: Path, entry_points: dict[str, str]) -> list[str]:
    """Return what is wrong with one wheel; add its entry points of group `xcfg` to `entry_points`."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
        declared = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        declared.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
        if f"{info}/entry_points.txt" in names:
            declared.read_string(archive.read(f"{info}/entry_points.txt").decode())
        licence = archive.read(f"{info}/licenses/LICENSE").decode() if f"{info}/licenses/LICENSE" in names else ""
    if declared.has_section("xcfg"):
        entry_points.update({name: str(metadata["Name"]) for name in declared["xcfg"]})
    packages = {name.split("/")[0] for name in names if not name.startswith(info)}
    faults = []
    if len(packages) != 1:
        faults.append(f"holds {sorted(packages)}, not one import package")
    faults += [f"{package} has no py.typed" for package in packages if f"{package}/py.typed" not in names]
    if "Apache License" not in licence:
        faults.append("has no LICENSE text")
    if metadata["License-Expression"] != "Apache-2.0":
        faults.append(f"License-Expression is {metadata['License-Expression']!r}")
    if len(str(metadata.get_payload())) < 200:
        faults.append("its README is missing or says next to nothing")
    faults += [f"ships {name}" for name in names if "/tests/" in name or name.endswith(".pyc")]
    return [f"{wheel.name}: {fault}" for fault in faults]


def faults_of_listing(listing: Path, entry_points: dict[str, str]) -> list[str]:
    """Return which declared plugins the installation does not list as active."""
    plugins = {item["name"]: item for item in json.loads(listing.read_text())["plugins"]}
    faults = []
    for name, distribution in sorted(entry_points.items()):
        found = plugins.get(name)
        if found is None:
            faults.append(f"{name!r}, which {distribution} declares, is not listed; listed are {sorted(plugins)}")
        elif found["status"] != "active":
            faults.append(f"the plugin {name!r} of {distribution} is {found['status']}: {found['reason']}")
    return faults


def main(arguments: list[str]) -> int:
    """Check the folder and the listing that `arguments` name."""
    dist, listing = Path(arguments[0]), Path(arguments[1])
    wheels = sorted(dist.glob("*.whl"))
    entry_points: dict[str, str] = {}
    faults = [fault for wheel in wheels for fault in faults_of_wheel(wheel, entry_points)]
    faults += faults_of_listing(listing, entry_points)
    if not wheels or not entry_points:
        faults.append(f"no wheel with an entry point in {str(dist)!r}")
    print("\n".join(faults) or f"{len(wheels)} wheels, plugins active: {', '.join(sorted(entry_points))}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
