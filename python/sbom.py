#!/usr/bin/env python3
"""sbom.py FILE COMMAND...: writes a bill of materials of a `tessera` command, which an emulator may stand before: SPDX 2.3 as JSON, of
the libraries that it says it was built with."""

import datetime
import json
import os
import re
import subprocess
import sys

# Under which licence each is, and where it comes from.
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
    told = json.loads(subprocess.run([*tool, "--version", "--json"], check=True, capture_output=True, text=True).stdout)
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    packages = [package("tessera", told["version"], "Apache-2.0", "NOASSERTION")]
    packages += [package(one["name"], one["built_with"], *KNOWN.get(one["name"].lower(), ("NOASSERTION", "NOASSERTION")))
                 for one in told["libraries"]]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-tessera"}]
    relations += [{"spdxElementId": "SPDXRef-tessera", "relatedSpdxElement": one["SPDXID"],
                   "relationshipType": "DYNAMIC_LINK" if one["name"] == "glibc" else "STATIC_LINK"} for one in packages[1:]]
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tessera-{told['version']}",
        "documentNamespace": f"https://spdx.org/spdxdocs/tessera-{told['version']}-{told['commit'] or 'unknown'}",
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: tessera-" + told["version"]]},
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
