"""Requests drawn by number go to both servicers, in the same order, and get the same answers.

`DRAWN=393 scripts/test-engines tests/engines/test_drawn.py -k "collector and cumulative"` runs case 393 alone.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import Both
from draw import count, draw, hazard
from exchange import Line


def numbers(both):
    only = os.environ.get("DRAWN")
    if only:
        return [int(n) for n in only.split(",")]
    if (both.output_path, both.stream_output) == ("collector", False):
        return list(range(count()))
    return list(range(count()))[:: 6]

def test_x(both, capsys):
    a, b = Line(both.python), Line(both.roomkeeper)
    import time
    out = open(f"/tmp/drawn-{both.output_path}-{both.stream_output}.txt","w")
    with ThreadPoolExecutor(2) as pool:
        for n in numbers(both):
            case = draw(n)
            if hazard(case): continue
            t=time.time()
            fa, fb = pool.submit(a.send, case), pool.submit(b.send, case)
            ra, rb = fa.result(), fb.result()
            dt=time.time()-t
            same = ra.code == rb.code
            out.write(f"{n} {case.method} {case.changed} {'spoilt' if case.spoilt else ''} {ra.code} {rb.code} {'' if same else 'DIFF'} {dt:.2f}\n     {ra.detail[:150]!r}\n     {rb.detail[:150]!r}\n")
            out.flush()
