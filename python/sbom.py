#!/usr/bin/env python3
"""sbom.py FILE COMMAND...: writes a bill of materials (SPDX 2.3, JSON) with the libraries of a `tessera` command.

COMMAND may begin with an emulator. The libraries come from `tessera --version --json`."""

import datetime
import json
import os
import re
import subprocess
import sys

# Licence and home page of each library.
KNOWN = {
    "glibc": ("LGPL-2.1-or-later", "https://www.gnu.org/software/libc/"),
    "libxxhash": ("BSD-2-Clause", "https://xxhash.com/"),
    "libzstd": ("BSD-3-Clause OR GPL-2.0-only", "https://facebook.github.io/zstd/"),
    "liburing": ("MIT OR LGPL-2.1-only", "https://github.com/axboe/liburing"),
    "cuda runtime": ("LicenseRef-NVIDIA-CUDA-EULA", "https://docs.nvidia.com/cuda/eula/"),
    "chart.js": ("MIT", "https://www.chartjs.org/"),
}


def package(name, version, licence, home):
    identity = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)
    return {"SPDXID": identity, "name": name, "versionInfo": version, "downloadLocation": home, "filesAnalyzed": False,
            "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION"}


def main():
    target, *tool = sys.argv[1:]
    version = json.loads(subprocess.run([*tool, "--version", "--json"], check=True, capture_output=True, text=True).stdout)
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    packages = [package("tessera", version["version"], "Apache-2.0", "NOASSERTION")]
    packages += [package(one["name"], one["built_with"], *KNOWN.get(one["name"].lower(), ("NOASSERTION", "NOASSERTION")))
                 for one in version["libraries"]]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-tessera"}]
    relations += [{"spdxElementId": "SPDXRef-tessera", "relatedSpdxElement": one["SPDXID"],
                   "relationshipType": "DYNAMIC_LINK" if one["name"] == "glibc" else "STATIC_LINK"} for one in packages[1:]]
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tessera-{version['version']}",
        "documentNamespace": f"https://spdx.org/spdxdocs/tessera-{version['version']}-{version['commit'] or 'unknown'}",
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: tessera-" + version["version"]]},
        "packages": packages, "relationships": relations}
    used = [one["licenseDeclared"] for one in packages if one["licenseDeclared"].startswith("LicenseRef-")]
    if used:
        document["hasExtractedLicensingInfos"] = [{"licenseId": name, "extractedText": "See the address of the package."}
                                                  for name in sorted(set(used))]
    with open(target, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
