"""Makes a .proto that protoc-c accepts: `optional T f = N;` becomes `oneof _f { T f = N; }`.

The bytes on the wire are the same, and so is presence. Only the unit tests use the result, to compare with an
independent implementation; what is served and shipped comes from the files as they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

OPTIONAL = re.compile(r"^(\s*)optional\s+([\w.]+)\s+(\w+)\s*=\s*(\d+);", re.MULTILINE)


def lower(text: str) -> str:
    return OPTIONAL.sub(r"\1oneof _\3 { \2 \3 = \4; }", text)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(lower(Path(sys.argv[1]).read_text()))
