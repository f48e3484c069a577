"""The stand-in engine: a worker that anyone can run on a laptop, with made-up tokens.

It has the shape of a TokenSpeed worker. A frontend like ``AsyncLLM`` lives in the servicer's
process (frontend.py), a scheduler in a process of its own per data-parallel rank (eventloop.py),
and a prefill and a decode worker meet over loopback (kv.py). What decides who is admitted when is
TokenSpeed's own C++ scheduler where the package ``tokenspeed-scheduler`` is installed (cpp.py),
else a plain first-come one (firstcome.py). See docs/standin.md.
"""
